"""The memory that training is said to need, held against what it takes."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch

from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.forward import packed_states
from posttrain.models.store import new_model
from posttrain.rollout import token_rows
from posttrain.text.packing import pack
from posttrain.train.estimate import activation_bytes, most_tokens, training_bytes
from posttrain.train.model_set import ModelSet
from tests.library.models import tiny_model
from tests.workspace import ROOT

TOKENS = 256
SHAPES: list[tuple[str, dict[str, int]]] = [
    ("qwen3", {"hidden_size": 128, "intermediate_size": 384, "num_attention_heads": 8, "num_key_value_heads": 2}),
    ("llama", {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2}),
    ("qwen3", {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 6, "num_key_value_heads": 6}),
]


def kept(model: Any, *, bf16: bool) -> int:
    """The bytes that autograd saves in a forward pass, the weights themselves left out."""
    weights = {part.untyped_storage().data_ptr() for part in (*model.parameters(), *model.buffers())}
    saved: dict[int, torch.Tensor] = {}

    def keep(part: torch.Tensor) -> torch.Tensor:
        if part.untyped_storage().data_ptr() not in weights:
            saved[part.untyped_storage().data_ptr()] = part
        return part

    device = Runtime(DeviceParams(device="cpu", precision="bf16" if bf16 else "fp32"))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda part: part), device.autocast():
        packed_states(model.train(), pack(token_rows([[1]], [[2] * (TOKENS - 1)])))
    return sum(part.untyped_storage().nbytes() for part in saved.values())


@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize(("family", "shape"), SHAPES)
def test_what_a_pass_keeps_is_what_is_said(family: str, shape: dict[str, int], bf16: bool) -> None:
    """The heads together are wider or narrower than the hidden size."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    sizes = {"vocab_size": 64, "num_hidden_layers": 3, "head_dim": 32, **shape}
    assert shape["num_attention_heads"] * 32 != shape["hidden_size"]
    model = new_model(CONFIG_MAPPING[family](**sizes), 0)
    layers = sum(part.numel() for part in model.model.layers.parameters())
    said = TOKENS * activation_bytes(model, bf16=bf16) + (2 * layers if bf16 else 0)
    assert kept(model, bf16=bf16) == pytest.approx(said, rel=0.1)


def test_a_step_needs_memory_for_its_own_tokens_alone() -> None:
    models = ModelSet(tiny_model(), Runtime(DeviceParams(device="cpu")), micro_tokens=16_384)
    one, two, all_of_them = (training_bytes(models, tokens) for tokens in (100, 200, 10**9))
    assert two - one == 100 * activation_bytes(models.policy, bf16=False)
    assert all_of_them - one == (16_384 - 100) * activation_bytes(models.policy, bf16=False)


def test_the_most_tokens_are_those_of_the_longest_items() -> None:
    sizes = [12, 4, 8]
    assert most_tokens(sizes, 1) == 12
    assert most_tokens(sizes, 2) == 12 + 8
    assert most_tokens(sizes, 50) == 12 + 8 + 4


MEASURE = """
import resource, sys
import psutil, torch
from transformers import Qwen3Config
from posttrain.algorithms.supervised import LikelihoodKnobs, LikelihoodObjective
from posttrain.models.device import DeviceParams
from posttrain.models.device import Runtime
from posttrain.models.store import new_model
from posttrain.rollout import token_rows
from posttrain.train.step import make_batch
from posttrain.train.estimate import training_bytes
from posttrain.train.step import StepClosure
from posttrain.train.model_set import ModelSet
from posttrain.train.step import AdamW, OptimizerParams

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

width, layers, tokens = map(int, sys.argv[1:])
config = Qwen3Config(vocab_size=512, hidden_size=width, num_hidden_layers=layers, num_attention_heads=4,
                     num_key_value_heads=4, head_dim=width // 4, intermediate_size=3 * width, tie_word_embeddings=True)
models = ModelSet(new_model(config, 0), Runtime(DeviceParams(threads=1)), micro_tokens=tokens)
update = AdamW([(models.policy, 1e-3)], OptimizerParams(), 2)
objective = LikelihoodObjective(LikelihoodKnobs())

def step(rows):
    batch = make_batch(token_rows([[1]] * rows, [[2] * 63] * rows))
    prepared = objective.prepare(batch.columns, {})
    update.step(StepClosure(objective, models, batch.with_prepared(prepared.step)), 0.0)

before = psutil.Process().memory_info().rss
step(tokens // 64)
print((peak() - before) / training_bytes(models, tokens))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("width", "layers", "tokens"), [(256, 8, 4096), (512, 4, 2048)])
def test_the_estimate_is_near_what_a_step_takes(width: int, layers: int, tokens: int) -> None:
    command = [sys.executable, "-c", MEASURE, str(width), str(layers), str(tokens)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    assert 0.5 < float(done.stdout) < 1.5, "the estimate is far from what was taken"
