"""The results of a training: its metrics, its means and its models."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from posttrain.algorithms.supervised import LikelihoodConfig, LikelihoodObjective
from posttrain.errors import ParamsError, TrainingError
from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.files.store import load_model
from posttrain.rollout import token_rows
from posttrain.train.batch_sources import EpochSource, Example
from posttrain.train.checkpoint import NoCheckpoints
from posttrain.train.loop import TrainingParams, TrainingRun, adamw
from posttrain.train.metrics import NoRecorder
from posttrain.train.model_set import ModelSet
from posttrain.train.trained import Trained, run_training
from tests.library.models.tiny import random_rows, tiny_folder

DEVICE = DeviceParams(device="cpu", threads=1)
CPU = Runtime(DEVICE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("trained"))


def run(folder: Path, **settings: Any) -> TrainingRun:
    """Two steps of SFT."""
    params = TrainingParams(optimizer={"lr": 1e-2}, device=DEVICE, **settings)  # type: ignore[arg-type]
    models = ModelSet.load(CPU, folder, frozenset(), params)
    source = EpochSource([Example([row]) for row in token_rows(*random_rows(4))], 2, 1.0, 0)
    objective = LikelihoodObjective(LikelihoodConfig())
    return TrainingRun("sft@main", params, objective, source, models, adamw(models.trained, params, 2, None), 64)


ROWS = [{"reward": 1.0, "length": 4.0}, {"reward": 2.0}, {"reward": 4.000000123, "length": 8.0}]


def test_means_of_the_last_steps(folder: Path) -> None:
    found = Trained(run(folder), ROWS, {"heldout": 9.0, "reward": 100.0})
    assert (found.steps, len(found), found[-1]["heldout"]) == (3, 4, 9.0)
    assert found.tail("reward", 2) == pytest.approx(3.0) and found.tail("length", 3) == 6.0
    assert math.isnan(found.tail("heldout", 3)), "the last row is no step"
    assert found.means(["reward", "heldout", "length"], 1) == {"reward": 4.0, "length": 8.0}
    assert Trained(run(folder), [], {}).means(["reward"]) == {}


def test_the_models_are_gathered_and_saved(folder: Path, tmp_path: Path) -> None:
    one = run(folder)
    found = Trained(one, ROWS, {})
    assert found.gather() is one.models and len(found) == 3
    one.models.policy.model.norm.weight.data.fill_(0.5)
    found.save(tmp_path / "saved")
    assert bool((load_model(tmp_path / "saved").model.norm.weight == 0.5).all())
    found.models = ModelSet(one.models.policy, CPU)
    with pytest.raises(ParamsError, match="this model was not loaded by load_models"):
        found.save(tmp_path / "other")


def test_a_training_from_its_checks_to_its_metrics(folder: Path) -> None:
    found = run_training(run(folder), NoCheckpoints(), NoRecorder())
    assert isinstance(found, Trained) and [row["step"] for row in found] == [0, 1] and found.name == "sft@main"
    with pytest.raises(TrainingError, match="training needs at least"):
        run_training(run(folder, limits={"memory": 1e-9}), NoCheckpoints(), NoRecorder())
