"""Several verdicts as one score."""

from __future__ import annotations

import pytest

from posttrain.rewards.judge.verdicts import first_failure, weighted
from posttrain.rollout import Score

UNREAD, DOWN = Score(0.0, "unparseable", "no number"), Score(0.0, "infrastructure", "down")


@pytest.mark.parametrize(
    ("verdicts", "weights", "value"),
    [([1.0, 0.0], [1.0, 3.0], 0.25), ([0.5, 1.0], [2.0, -1.0], 0.0), ([1.0, 0.0], [2.0, -1.0], 1.0)],
)
def test_verdicts_are_weighted_and_clipped(verdicts: list[float], weights: list[float], value: float) -> None:
    assert weighted(verdicts, weights) == Score(value)


def test_a_verdict_that_is_missing_decides() -> None:
    assert weighted([1.0, UNREAD, DOWN], [1.0, 1.0, 1.0]) is DOWN and weighted([1.0, UNREAD], [1.0, 1.0]) is UNREAD
    assert first_failure([0.5, 1.0]) is None and first_failure([UNREAD, DOWN]) is DOWN
