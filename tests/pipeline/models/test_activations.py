"""What is kept for the backward pass decides the memory and nothing else: gradients and runs are equal bit by bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from posttrain.algorithms.reward import RewardConfig, RewardObjective
from posttrain.errors import ModelError
from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.files.loading import with_scalar_head
from posttrain.models.forward.activations import Activations, set_activations
from posttrain.models.forward.forward import packed_states
from posttrain.rollout import token_rows
from posttrain.text.packing import pack
from posttrain.train.loop import TrainingParams, checkpoint_settings
from posttrain.train.model_set import ModelSet
from posttrain.train.step import StepClosure, make_batch
from tests.library.models.families import FAMILIES
from tests.library.models.test_families import family
from tests.library.models.test_fast_paths import closure, models_of, objectives
from tests.library.models.tiny import random_rows, tiny_folder, tiny_model
from tests.pipeline.train.test_training import digest, make_run, settings_of, train

LESS: tuple[Activations, ...] = ("selective", "recompute", "offload")


def runtime(precision: str = "fp32", *, fused: bool = True) -> Runtime:
    return Runtime(DeviceParams(device="cpu", precision=precision, threads=1), fused=fused)  # type: ignore[arg-type]


def gradients(step: StepClosure, activations: Activations) -> list[Tensor | None]:
    """What a step adds to the weights of all models that are trained."""
    for model in step.models.trained.values():
        set_activations(model, activations)
        model.train()
    step()
    return [part.grad for model in step.models.trained.values() for part in model.parameters()]


def assert_equal(make: Callable[[], StepClosure], activations: Activations) -> None:
    expected, found = gradients(make(), "keep"), gradients(make(), activations)
    assert sum(float(part.abs().sum()) for part in expected if part is not None) > 0
    for one, other in zip(expected, found, strict=True):
        assert (one is None) == (other is None)
        assert one is None or other is None or torch.equal(one, other)


@pytest.mark.parametrize(
    ("name", "activations"),
    [
        *((name, way) for name in objectives() for way in ("selective", "recompute")),
        ("grpo", "offload"),
        ("gspo", "offload"),
    ],
)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "autograd"])
def test_gradients_are_equal_bit_by_bit(name: str, fused: bool, precision: str, activations: Activations) -> None:
    objective = objectives()[name]
    assert_equal(lambda: closure(objective, models_of(name, runtime(precision, fused=fused), 64)), activations)


def scored(precision: str) -> StepClosure:
    """Pairs for a model with a scalar head."""
    models = ModelSet(head_on(tiny_model()), runtime(precision), micro_tokens=64)
    objective = RewardObjective(RewardConfig())
    columns = {"side": torch.tensor([1.0, -1.0] * 6), "margin": torch.zeros(12)}
    batch = make_batch(token_rows(*random_rows(12, seed=4)), columns, {}, torch.arange(12) // 2)
    return StepClosure(objective, models, batch.with_prepared(objective.prepare(batch.columns, {}).step))


def with_critic(precision: str) -> StepClosure:
    """A policy and its critic, which learns from values of its own."""
    objective = settings_of("ppo").objective()
    policy = ModelSet(tiny_model(), runtime(precision), micro_tokens=64)
    return closure(objective, replace(policy, critic=head_on(tiny_model(seed=1))))


def head_on(model: Any) -> Any:
    scorer = with_scalar_head(model, "test")
    torch.nn.init.normal_(scorer.score.weight, generator=torch.Generator().manual_seed(0))
    return scorer


@pytest.mark.slow
@pytest.mark.parametrize("activations", LESS)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("make", [scored, with_critic])
def test_scalar_heads_too(make: Callable[[str], StepClosure], precision: str, activations: Activations) -> None:
    assert_equal(lambda: make(precision), activations)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_families_too_or_they_are_refused(name: str) -> None:
    """Windows, experts, dropout: what a layer draws is drawn again."""
    objective = objectives()["likelihood"]
    assert_equal(lambda: closure(objective, ModelSet(family(name), runtime(), micro_tokens=64)), "recompute")


def test_layers_that_cannot_be_computed_again_are_refused() -> None:
    with pytest.raises(ModelError, match="cannot be computed again"):
        set_activations(torch.nn.Linear(2, 2), "recompute")
    set_activations(torch.nn.Linear(2, 2), "keep")


@pytest.mark.parametrize("activations", LESS)
def test_a_layer_keeps_its_input_alone(activations: Activations) -> None:
    """Otherwise the knob costs time and saves nothing."""
    model, tokens, saved = tiny_model().train(), 200, dict[int, int]()
    weights = {part.untyped_storage().data_ptr() for part in model.parameters()}

    def keep(part: Tensor) -> Tensor:
        if part.untyped_storage().data_ptr() not in weights:
            saved[part.untyped_storage().data_ptr()] = part.untyped_storage().nbytes()
        return part

    def kept() -> int:
        saved.clear()
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda part: part):
            packed_states(model, pack(token_rows([[1]], [[2] * (tokens - 1)])))
        return sum(saved.values())

    everything = kept()
    set_activations(model, activations)
    layer_inputs = tokens * 2 * 4 * 32
    if activations == "recompute":  # the offloaded ones are out of sight
        assert layer_inputs <= kept() < 2.2 * layer_inputs < everything / 4
    else:
        assert kept() < everything / 4
    set_activations(model, "keep")
    assert kept() == everything


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sft", "dpo"])
def test_a_run_is_the_same(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also its checkpoints: a run that was out of memory resumes with less kept."""
    folder, found = tiny_folder(tmp_path / "tiny"), set()
    for activations in ("keep", *LESS):
        monkeypatch.setenv("DVC_ROOT", str(tmp_path / activations))
        run = replace(make_run(folder, name, tmp_path), params=TrainingParams(activations=activations))
        train(run, tmp_path)
        found.add((digest(run), (tmp_path / f"{name}.csv").read_text()))
        assert checkpoint_settings(run.params) == checkpoint_settings(TrainingParams())
    assert len(found) == 1
