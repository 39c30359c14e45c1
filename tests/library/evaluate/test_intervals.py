"""Intervals, pass@k and calibration by hand."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest

from posttrain.evaluate.intervals import (
    best_of_k,
    calibration_error,
    failures_note,
    interval,
    is_outcome,
    part_figures,
    pass_at_k,
    prompt_figures,
    sizes,
)


def test_interval() -> None:
    low, high = interval(np.array([0.0, 1.0] * 50), 0)
    assert low == pytest.approx(0.4, abs=0.02) and high == pytest.approx(0.6, abs=0.02)
    assert interval(np.array([2.0, 2.0]), 0) == (2.0, 2.0)
    least = 0.025 ** (1 / 4)
    assert interval(np.ones(4), 0, shares=True) == pytest.approx((least, 1.0))
    assert interval(np.zeros(4), 0, shares=True) == pytest.approx((0.0, 1 - least))


def test_prompt_figures() -> None:
    found = prompt_figures([[1.0, 0.0], [1.0, 1.0], []], 2, 0)
    assert (found["score"], found["pass_at_1"], found["pass_at_2"]) == (0.75, 0.75, 1.0)
    assert found["score_low"] <= 0.75 <= found["score_high"]
    assert set(prompt_figures([[0.5], [1.0]], 1, 0)) == {"score", "score_low", "score_high"}


def test_part_figures() -> None:
    found = part_figures("length", [[3.0, None], [5.0]], 0)
    assert found["length"] == 4.0 and found["length_failed"] == 1.0
    assert part_figures("length", [[None]], 0) == {"length_failed": 1.0}
    assert failures_note(found, "length") == " (1 failed)" and failures_note({}, "length") == ""


def test_outcomes_and_sizes() -> None:
    assert is_outcome(np.array([0.0, 1.0])) is True and is_outcome(np.array([0.5])) is False
    assert sizes(6) == [1, 2, 4, 6] and sizes(8) == [1, 2, 4, 8] and sizes(1) == [1]


def test_best_of_k_is_the_mean_over_all_choices() -> None:
    by, scores = np.array([3.0, 1.0, 2.0]), np.array([0.0, 1.0, 0.5])
    choices = [max(some, key=lambda nth: by[nth]) for some in combinations(range(3), 2)]
    assert best_of_k(by, scores, 2) == pytest.approx(sum(scores[nth] for nth in choices) / 3)
    assert best_of_k(np.array([1.0, 1.0]), np.array([0.0, 1.0]), 1) == 0.5


def test_pass_at_k() -> None:
    assert pass_at_k(4, np.array([1.0, 0.0, 4.0]), 2).tolist() == pytest.approx([1 - math.comb(3, 2) / 6, 0, 1])
    with pytest.raises(ValueError, match="needs at least 3 samples, there are 2"):
        pass_at_k(2, np.array([1.0]), 3)


def test_calibration_error() -> None:
    sure, right = np.array([0.95, 0.95, 0.15, 1.0]), np.array([1.0, 0.0, 0.0, 1.0])
    assert calibration_error(sure, right) == pytest.approx((abs(2.9 - 2) + 0.15) / 4)
