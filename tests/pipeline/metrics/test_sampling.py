"""Every metric of every algorithm that trains on samples has an entry."""

from __future__ import annotations

import pytest

from posttrain.algorithms.distillation import DistillObjective
from posttrain.algorithms.policy_objective import PolicyObjective
from posttrain.laws.cases import Shape, build
from posttrain.laws.cases import run as run_case
from posttrain.pipeline.metrics.catalog import about
from tests.library.laws.subjects import subjects


@pytest.mark.parametrize("subject", list(subjects()))
def test_every_metric_has_an_entry(subject: str) -> None:
    objective = subjects()[subject]()
    stage = "distill" if isinstance(objective, DistillObjective) else "online"
    if stage == "distill" or isinstance(objective, PolicyObjective):
        names = ("loss", *run_case(build(objective, Shape(1))).metrics)
        assert not [name for name in names if not about(stage, name)]


def test_a_policy_gradient_loss_has_no_healthy_range() -> None:
    assert "does not measure progress" in about("online", "loss")
