"""The memory that training is said to need, held against what it takes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.workspace import ROOT

MEASURE = """
import resource, sys
import psutil, torch
from transformers import Qwen3Config
from posttrain.algorithms.supervised import LikelihoodKnobs, LikelihoodObjective
from posttrain.models.device import Device, DeviceParams
from posttrain.models.store import new_model
from posttrain.train.batch import make_batch
from posttrain.train.estimate import training_bytes
from posttrain.train.loop import GradientProblem
from posttrain.train.modules import Modules
from posttrain.train.optimizer import AdamW, OptimizerParams

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

width, layers, tokens = map(int, sys.argv[1:])
config = Qwen3Config(vocab_size=512, hidden_size=width, num_hidden_layers=layers, num_attention_heads=4,
                     num_key_value_heads=4, head_dim=width // 4, intermediate_size=3 * width, tie_word_embeddings=True)
modules = Modules(new_model(config, 0), Device(DeviceParams(threads=1)), micro_tokens=tokens)
update = AdamW([(modules.policy, 1e-3)], OptimizerParams(), 2)
objective = LikelihoodObjective(LikelihoodKnobs())

def step(rows):
    batch = make_batch([[1]] * rows, [[2] * 63] * rows)
    prepared = objective.prepare(batch.columns, {})
    update.step(GradientProblem(objective, modules, batch.with_columns(prepared.step)), 0.0)

before = psutil.Process().memory_info().rss
step(tokens // 64)
print((peak() - before) / training_bytes(modules))
"""


@pytest.mark.parametrize(("width", "layers", "tokens"), [(256, 8, 4096), (512, 4, 2048)])
def test_the_estimate_is_near_what_a_step_takes(width: int, layers: int, tokens: int) -> None:
    command = [sys.executable, "-c", MEASURE, str(width), str(layers), str(tokens)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    assert 0.5 < float(done.stdout) < 1.5, "the estimate is far from what was taken"
