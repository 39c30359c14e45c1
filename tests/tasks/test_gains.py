"""What a gain on the miniature consists of, by hand-computed numbers."""

from __future__ import annotations

import pytest

from posttrain.tasks.two_step.gains import explain_gain, gain


def test_gain_splits_exactly() -> None:
    # w .5 -> 1, a .8 -> .9, b (.45 - .5 * .8) / .5 = .1 -> a: .5 * ((.8 - .1) + (.9 - .9)) / 2 = .175
    found = gain(
        {"score": 0.45, "working": 0.5, "right_given_working": 0.8},
        {"score": 0.9, "working": 1.0, "right_given_working": 0.9},
    )
    assert found.total == pytest.approx(0.45)
    assert found.by_working == pytest.approx(0.175)
    assert found.by_accuracy == pytest.approx(0.275)
    assert found.share == pytest.approx(0.175 / 0.45)


def test_gain_of_accuracy_alone_has_no_part_from_working() -> None:
    before = {"score": 0.3, "working": 0.5, "right_given_working": 0.6}
    found = gain(before, {"score": 0.4, "working": 0.5, "right_given_working": 0.8})
    assert found.by_working == 0.0
    assert found.by_accuracy == pytest.approx(0.1)


def test_a_gain_is_explained_in_a_line() -> None:
    # without working never right: b = 0, so (.9 - .5) * (.6 + .8) / 2 = .28 of .42
    before = {"score": 0.3, "working": 0.5, "right_given_working": 0.6}
    line = explain_gain("up", before, {"score": 0.72, "working": 0.9, "right_given_working": 0.8})
    assert line.startswith("up gained 0.42, of which +0.28 (67 %) by showing its working more often (in 0.50 → 0.90")
