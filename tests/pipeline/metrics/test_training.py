"""Every metric of every objective that trains on tables has an entry of its own stage."""

from __future__ import annotations

import pytest

from posttrain.algorithms.objective import Objective
from posttrain.algorithms.preference_objective import PreferenceObjective
from posttrain.algorithms.reward import RewardObjective
from posttrain.algorithms.supervised import LikelihoodObjective
from posttrain.laws.cases import Shape, build
from posttrain.laws.cases import run as run_case
from posttrain.pipeline.metrics.catalog import about
from tests.library.laws.subjects import subjects

STAGES: dict[type[Objective], tuple[str, ...]] = {
    PreferenceObjective: ("preference", "online"),
    RewardObjective: ("reward",),
    LikelihoodObjective: ("base", "sft"),
}
TABLES = {
    name: stages for name, make in subjects().items() for kind, stages in STAGES.items() if isinstance(make(), kind)
}


@pytest.mark.parametrize("subject", list(TABLES))
def test_every_metric_has_an_entry(subject: str) -> None:
    names = ("loss", *run_case(build(subjects()[subject](), Shape(1))).metrics)
    assert not [(stage, name) for name in names for stage in TABLES[subject] if not about(stage, name)]


def test_the_objectives_are_found() -> None:
    assert len(TABLES) > 20 and set(TABLES.values()) == {*STAGES.values()}
