"""Families of models on the second device: a step, log-probs and samples of each are the CPU's in float32."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from posttrain.algorithms.supervised import LikelihoodConfig, LikelihoodObjective
from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.files.store import new_model
from posttrain.models.forward.forward import score_tokens
from posttrain.models.self_check import verify_forward
from posttrain.rollout import token_rows
from posttrain.sampling.sampler import SamplingParams
from posttrain.text.packing import pack
from posttrain.text.stops import Stops
from posttrain.train.model_set import ModelSet
from posttrain.train.optimizer import AdamW, OptimizerParams
from posttrain.train.step import StepClosure, make_batch
from tests.library.models.families import EVERY, SHAPE
from tests.library.models.tiny import Samples, random_rows, sample
from tests.marks import slow_except

QUICK = {"llama", "qwen3", "gemma2", "gpt_oss", "deepseek_v3", "mamba"}
"""Grouped keys, head norms, windows and caps, sinks and experts, heads of two sizes, states in place of keys."""
GAP = 1e-4
GAPS = {"bitnet": 1e-3}
"""It rounds hidden states to 8 bits, and a GPU's sums may fall on the other side."""
ROWS = token_rows(*random_rows(6))


def trained(model: Any, device: Any) -> tuple[Tensor, Samples]:
    """What a model says of rows after an update, and what it samples."""
    runtime = Runtime(DeviceParams(device=device, precision="fp32"))
    policy = model.to(runtime.device).eval()  # without dropout
    objective, batch = LikelihoodObjective(LikelihoodConfig()), make_batch(ROWS)
    prepared = objective.prepare(batch.columns, objective.initial_state()).step
    update = AdamW({"policy": (policy, 1e-3)}, OptimizerParams(), 2)
    update.step(StepClosure(objective, ModelSet(policy, runtime), batch.with_prepared(prepared)), 0.5)
    params = SamplingParams(max_tokens=6, rows=7)
    with torch.no_grad():
        logps = score_tokens(policy, pack(ROWS).to(runtime.device))[0].cpu()
    prompts = [row.prompt for row in ROWS]
    return logps, sample(
        policy, prompts, [*"abcdef"], n=2, params=params, seed=0, stop=Stops((2,), str), device=runtime
    )


@pytest.mark.parametrize("name", slow_except(QUICK, EVERY))
def test_a_step_and_samples_are_those_of_the_cpu(name: str) -> None:
    model = new_model(CONFIG_MAPPING[name](**{**SHAPE, **EVERY[name]}), 0)
    verify_forward(model, name)  # finds out which families run in padded rows
    (expected, drawn), (found, drawn_there) = (trained(copy.deepcopy(model), device) for device in ("cpu", "cuda"))
    assert float((found - expected).abs().max()) <= GAPS.get(name, GAP)
    assert drawn_there.ids == drawn.ids
