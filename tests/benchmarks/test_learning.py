"""The subjects of benchmarks.learning: that one named for what its rule does is trained where the rule acts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.learning_trials import Subject, subjects
from posttrain.pipeline.runs.online import ONLINE
from posttrain.settings.params import check
from posttrain.settings.plain import merge
from posttrain.train.loop import TrainingRun
from posttrain.train.model_set import ModelSet
from posttrain.train.optimizer import AdamW
from tests.library.models.tiny import tiny_folder
from tests.pipeline.train.test_training import ALL_WEIGHTS, DEVICE, OPTIMIZER, ROLLOUT, digest, groups, train

SUBJECTS = {subject.label: subject for subject in subjects()}


def trained(subject: Subject, folder: Path, place: Path, lr: float) -> tuple[str, list[float]]:
    """The weights and the share of masked tokens at each step of a small run with the subject's own settings."""
    given = merge(subject.settings(lr, 0), {"rollout": {**ROLLOUT, **subject.knobs.get("rollout", {})}})
    params: Any = check(ONLINE[subject.algorithm].model, ONLINE[subject.algorithm].row.merged(given), where="x")
    objective = params.objective()
    models = ModelSet.load(DEVICE, folder, objective.needs, ALL_WEIGHTS)
    source = groups(folder, models, objective.needs, params.rollout)
    update = AdamW({"policy": (models.policy, lr)}, OPTIMIZER, source.steps)
    run = TrainingRun(subject.label, ALL_WEIGHTS, objective, source, models, update, 0)
    place.mkdir()
    log = train(run, place)
    return digest(run), [float(row["clip_fraction"]) for row in log.rows]


@pytest.mark.parametrize(
    ("epochs", "lr", "acts"),
    [(", two epochs", 3e-2, True), pytest.param("", 1e-3, False, marks=pytest.mark.slow)],
)
def test_the_mask_of_dppo_acts_where_samples_are_used_twice(
    epochs: str, lr: float, *, acts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a mask of ones alone its weights are those of cispo, bit for bit, since both cap the ratio at 5."""
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    folder = tiny_folder(tmp_path / "tiny")
    plain, _ = trained(SUBJECTS[f"cispo{epochs}"], folder, tmp_path / "cispo", lr)
    masked, shares = trained(SUBJECTS[f"dppo_tv{epochs}"], folder, tmp_path / "dppo", lr)
    assert (max(shares) > 0) == (masked != plain) == acts, shares
