"""What a gain on the miniature consists of, by hand-computed numbers."""

from __future__ import annotations

import pytest

from posttrain.pipeline.toy_tasks.two_step.gains import explain_gain, gain


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
    line = explain_gain("up", [before], [{"score": 0.72, "working": 0.9, "right_given_working": 0.8}])
    assert line.startswith("up gained 0.42, of which +0.28 (67 %) by showing its working more often (in 0.50 → 0.90")


def test_a_gain_of_several_trainings_is_the_mean_of_their_parts() -> None:
    # .5 * .6 / 2 = .15 of .60, and -.3 * (.6 + .5) / 2 = -.165 of -.20; the means .6 and .7 would give .055 of .20
    before = {"score": 0.3, "working": 0.5, "right_given_working": 0.6}
    seeds = [
        {"score": 0.9, "working": 1.0, "right_given_working": 0.9},
        {"score": 0.1, "working": 0.2, "right_given_working": 0.5},
    ]
    line = explain_gain("up", [before], seeds)
    assert line.startswith("up gained 0.20, of which -0.01 (-4 %) by showing its working more often (in 0.50 → 0.60")
    assert line.endswith("+0.21 by being right more often (accuracy given working 0.60 → 0.70)")
    back = explain_gain("down", seeds, [before])
    assert back.startswith("down gained -0.20, of which +0.01 (-4 %)"), "seeds of the reference are pooled alike"
