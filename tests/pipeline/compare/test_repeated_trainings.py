"""Which trainings of a setting are one and the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from posttrain.pipeline.compare.settings import grouped
from tests.pipeline.compare.test_budgets import training


@pytest.mark.parametrize(("first", "second", "seeds"), [("w1", "w2", 2), ("w1", "w1", 1), ("", "w2", 1), ("", "", 1)])
def test_equal_curves_of_other_weights_are_two_trainings(first: str, second: str, seeds: int) -> None:
    """A trainer may log the same curve for every seed; where a model is missing, its curve has to do."""
    pair = (("a", first), ("b", second))
    found = [replace(training(name, 1.0, [0.5]), trained=weights, settings={}) for name, weights in pair]
    settings, notes = grouped(found)
    assert [len(setting.trained) for setting in settings] == [seeds]
    assert bool(notes) == (seeds == 1)


def test_equal_weights_are_one_training_whatever_its_curve() -> None:
    pair = (("a", [0.5]), ("b", [0.5, None]))
    found = [replace(training(name, 1.0, curve), trained="w", settings={}) for name, curve in pair]  # type: ignore[arg-type]
    settings, _ = grouped(found)
    assert [len(setting.trained) for setting in settings] == [1]
