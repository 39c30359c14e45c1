"""Compiled layers give the gradients of uncompiled ones up to rounding, and every time the same bytes."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from posttrain.errors import ModelError
from posttrain.models.activations import Activations, set_activations
from posttrain.models.compiled import compiled
from posttrain.models.device import DeviceParams, Runtime
from posttrain.train.loop import TrainingParams, checkpoint_settings
from posttrain.train.model_set import ModelSet
from posttrain.train.step import StepClosure
from tests.library.models import tiny_folder, tiny_model
from tests.library.test_activations import runtime, with_critic
from tests.library.test_fast_paths import closure, models_of, objectives
from tests.library.test_training import CutError, CutSource, digest, make_run, train


def gradients(make: Callable[[], StepClosure], *, on: bool, activations: Activations = "keep") -> list[Tensor]:
    """What two steps of different sizes add to the weights; every pass with a gradient has to run compiled."""
    step = make()
    models = [*step.models.trained.values()]
    for model in models:
        set_activations(model, activations)
    with compiled(models, on=on):
        for model in models:
            assert not any(part.grad is not None for part in model.parameters()), "compiling leaves no gradient"
            model.train()
        if on:
            torch.compiler.set_stance("fail_on_recompile")
        step()
    return [part.grad for model in models for part in model.parameters() if part.grad is not None]


def assert_close(make: Callable[[], StepClosure], activations: Activations = "keep") -> None:
    """Within 1e-5 of the largest gradient of each weight, and not the same bits."""
    expected, found = gradients(make, on=False), gradients(make, on=True, activations=activations)
    assert len(expected) == len(found)
    for one, other in zip(expected, found, strict=True):
        assert float((one - other).abs().max()) <= 1e-5 * max(1.0, float(one.abs().max()))
    assert sum(float(part.abs().sum()) for part in expected) > 0
    assert any(not torch.equal(one, other) for one, other in zip(expected, found, strict=True)), "nothing is compiled"


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "autograd"])
def test_gradients_are_those_of_uncompiled_layers(fused: bool) -> None:
    """In micro-batches of many sizes, on both paths of the loss."""
    assert_close(lambda: closure(objectives()["grpo"], models_of("grpo", runtime(fused=fused), 64)))
