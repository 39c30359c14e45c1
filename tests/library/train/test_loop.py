"""The loop of a training run: its settings, its steps and its checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from posttrain.algorithms.supervised import LikelihoodConfig, LikelihoodObjective
from posttrain.errors import CheckpointError, TrainingError
from posttrain.measure.record import noted
from posttrain.models.device import DeviceParams, Runtime
from posttrain.rollout import token_rows
from posttrain.train.batch_sources import EpochSource, Example
from posttrain.train.checkpoint import CheckpointData, NoCheckpoints
from posttrain.train.learning_rates import default_rate
from posttrain.train.loop import (
    TrainingParams,
    TrainingRun,
    _check_fit,
    _checkpoint,
    _default_rate,
    _is_metrics,
    _restore,
    adamw,
    checkpoint_settings,
    note_processes,
    refuse_dropout,
    section_of,
    training_loop,
)
from posttrain.train.metrics import MetricsLog, NoRecorder
from posttrain.train.model_set import ModelSet
from posttrain.train.optimizer import OptimizerParams
from tests.library.models.tiny import random_rows, tiny_folder, tiny_model

DEVICE = DeviceParams(device="cpu", threads=1)
CPU = Runtime(DEVICE)
ROWS = token_rows(*random_rows(6))
LORA = {"type": "lora", "rank": 2}


def params(**settings: Any) -> TrainingParams:
    return TrainingParams(**{"optimizer": {"lr": 1e-2}, "device": DEVICE, **settings})


def run(models: ModelSet | None = None, **settings: Any) -> TrainingRun:
    """Three steps of SFT."""
    given = params(**settings)
    models = ModelSet(tiny_model(), CPU) if models is None else models
    source = EpochSource([Example([row]) for row in ROWS], 2, 1.0, 0)
    objective = LikelihoodObjective(LikelihoodConfig())
    return TrainingRun("sft@main", given, objective, source, models, adamw(models.trained, given, 3, models.policy), 64)


class Saved(NoCheckpoints):
    """Keeps its checkpoints in memory, and may begin with one."""

    def __init__(self, first: CheckpointData | None = None) -> None:
        self.first, self.steps = first, list[int]()

    def resume(self, restore: Any) -> Any:
        return None if self.first is None else restore(self.first)

    def save(self, data: CheckpointData) -> None:
        self.steps.append(data.step)


def test_settings_of_every_training() -> None:
    found = params()
    assert (found.has_critic, found.reference_moves, found.critic_start) == (False, False, None)
    assert found.divides_models is True and found.logp_temperature == 1.0
    assert found.runtime().device == torch.device("cpu")
    with pytest.raises(NotImplementedError):
        _ = found.needs
    assert found.attach(Path("base")) is None and params(adapter=LORA).attach(Path("base")) is not None


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"optimizer": {"critic_first": 0.5}}, "optimizer.critic_first: the run has no critic"),
        ({"compile": True, "activations": "selective"}, "compiled layers choose their own activations"),
        ({"optimizer": {"matrices": "muon"}, "adapter": LORA}, "it needs whole matrices"),
        ({"processes": 3, "shards": 2}, "shards = 2 does not divide processes = 3"),
        ({"processes": 2, "adapter": {"type": "qlora"}}, "weights in 4 bits cannot be divided"),
        ({"processes": 2, "adapter": {**LORA, "dropout": 0.1}}, "each process would drop different inputs"),
    ],
)
def test_settings_that_do_not_fit(settings: dict[str, Any], fault: str) -> None:
    with pytest.raises((ValidationError, ValueError)) as refused:
        TrainingParams(**settings)
    assert fault in str(refused.value)


def test_settings_that_fit_stay() -> None:
    assert TrainingParams.model_validate({}) == TrainingParams()
    assert TrainingParams.model_validate({"processes": 2, "shards": 2}).shards == 2
    assert params(processes=4, adapter=LORA).processes == 4
    refuse_dropout(params(adapter=LORA))
    with pytest.raises(ValueError, match="dropout changes log-probs"):
        refuse_dropout(params(adapter={**LORA, "dropout": 0.1}))


def test_the_section_of_a_run() -> None:
    assert section_of("online@grpo") == "online.runs.grpo" and section_of("evaluate") == "evaluate"


def test_settings_that_identify_checkpoints() -> None:
    found = checkpoint_settings(params(seed=3, checkpoint_every=7))
    assert found["seed"] == 3 and found["optimizer"]["lr"] == 1e-2
    left_out = {"limits", "checkpoint_every", "save_dtype", "activations", "processes", "shards", "template"}
    assert not left_out & found.keys()
    assert checkpoint_settings(params(template={"mode": 1}))["template"] == {"mode": 1}


def test_each_trained_model_has_its_rate(capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny_model()
    given = params(optimizer={"lr": 1e-2, "critic_lr": 3e-2})
    update = adamw({"policy": model, "critic": tiny_model()}, given, 3, model)
    groups = update._optimizers["adamw"].param_groups
    assert {(group["model"], group["peak"]) for group in groups} == {("policy", 1e-2), ("critic", 3e-2)}
    wanted = default_rate("sft", sum(part.numel() for part in model.parameters()), adapter=False).lr
    assert _default_rate(model, params(optimizer={})) == wanted
    assert capsys.readouterr().err.startswith("optimizer.lr: ")
    small = default_rate("sft", sum(part.numel() for part in model.parameters()), adapter=True).lr
    assert _default_rate(model, params(optimizer={}, adapter=LORA)) == small != wanted


def test_training_takes_all_steps() -> None:
    seen: list[tuple[int, dict[str, float]]] = []
    one = replace(run(checkpoint_every=2), on_step=lambda step, row: seen.append((step, row)))
    store = Saved()
    log = training_loop(one, store, NoRecorder())
    assert [row["step"] for row in log.rows] == [0, 1, 2] and seen == list(enumerate(log.rows))
    assert store.steps == [2, 3] and all(row["grad_norm"] > 0 for row in log.rows)
    assert not one.models.policy.training
    assert [row["step"] for row in training_loop(run(), NoCheckpoints(), NoRecorder(), end=1).rows] == [0]


def test_a_checkpoint_continues_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    whole = run()
    log = training_loop(whole, NoCheckpoints(), NoRecorder())
    first = run()
    begun = training_loop(first, NoCheckpoints(), NoRecorder(), end=2)
    saved = _checkpoint(first, 2, {}, begun)
    assert saved.step == 2 and saved.plain["rows"] == begun.rows and saved.plain["objective"] == {}
    again = run()
    assert _restore(again, saved) == (2, {}, begun.rows)
    assert "sft@main: resumes from the checkpoint at step 2 of 3" in capsys.readouterr().out
    mine, theirs = again.models.trained_parameters(), first.models.trained_parameters()
    assert all(torch.equal(part, theirs[name]) for name, part in mine.items())
    resumed = run()
    rows = training_loop(resumed, Saved(saved), NoRecorder()).rows
    assert [row["loss"] for row in rows] == [row["loss"] for row in log.rows]
    final = whole.models.trained_parameters()
    assert all(torch.equal(part, final[name]) for name, part in resumed.models.trained_parameters().items())


def test_a_checkpoint_of_another_version_ends_the_run() -> None:
    one = run()
    saved = _checkpoint(one, 0, {}, MetricsLog(NoRecorder()))
    tensors = {name: part for name, part in saved.tensors.items() if not name.startswith("random.")}
    with pytest.raises(TrainingError, match="step 0 was made by another version of the run"):
        _restore(one, replace(saved, tensors=tensors))


@pytest.mark.parametrize(
    ("value", "is_one"),
    [({"a": 1, "b": 0.5}, True), ({}, True), ([], False), ({"a": "1"}, False), ({"a": True}, False)],
)
def test_what_are_metrics(value: Any, is_one: bool) -> None:
    assert _is_metrics(value) is is_one


NAN = float("nan")


@pytest.mark.parametrize(
    ("tensors", "plain", "fault"),
    [
        ({"policy.a": torch.ones(2)}, {"rows": [{}], "objective": {}}, None),
        ({"policy.a": torch.ones(2)}, {"rows": [], "objective": {}}, "its metrics or its state are incomplete"),
        ({"policy.a": torch.ones(2)}, {"rows": [{}], "objective": {"x": 1}}, "its metrics or its state are incomplete"),
        ({}, {"rows": [{}], "objective": {}}, "it lacks policy.a"),
        ({"policy.a": torch.ones(2), "policy.b": torch.ones(1)}, None, "it has a foreign policy.b"),
        ({"policy.a": torch.ones(3)}, None, "policy.a has shape [3], expected [2]"),
        ({"policy.a": torch.tensor([1.0, NAN])}, None, "policy.a is not finite"),
    ],
)
def test_which_checkpoints_fit(
    tensors: dict[str, torch.Tensor], plain: Mapping[str, Any] | None, fault: str | None
) -> None:
    saved = CheckpointData(1, tensors, dict(plain or {"rows": [{}], "objective": {}}))
    if fault is None:
        _check_fit({"policy.a": torch.zeros(2)}, {}, saved)
        return
    with pytest.raises(CheckpointError) as refused:
        _check_fit({"policy.a": torch.zeros(2)}, {}, saved)
    assert refused.value.what == fault


def test_processes_are_noted_one_after_the_other() -> None:
    for before, text in (("2", "2, then 1"), ("4, then 1", "4, then 1"), ("1, then 2", "1, then 2, then 1")):
        note_processes(before)
        assert noted("processes") == text


def test_models_of_a_folder_are_trained(tmp_path: Path) -> None:
    given = params(adapter=LORA)
    models = ModelSet.load(CPU, tiny_folder(tmp_path), frozenset(), given)
    training_loop(run(models, adapter=LORA), NoCheckpoints(), NoRecorder())
    trained = models.trained_parameters()
    assert trained and all("lora_" in name for name in trained)
    assert OptimizerParams().average == given.optimizer.average
