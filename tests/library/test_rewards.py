"""Rewards by rule: numbers are compared as they are written, and what can never be won is refused."""

from __future__ import annotations

import random

import pytest

from posttrain.errors import DataError
from posttrain.rewards.blend import check_answers
from posttrain.rewards.verifiable import Sampled, correct
from posttrain.rollout.pairs import _prefers


def right(text: str, answer: str) -> float:
    return correct([Sampled([1], [2], text, answer, False)])[0]


@pytest.mark.parametrize(
    ("text", "answer", "reward"),
    [
        ("#### 7", "7", 1.0),
        ("#### 7.0", "7", 1.0),
        ("#### 1,000", "1000", 1.0),
        ("#### 1000", "1,000.00", 1.0),
        ("#### -0", "0", 1.0),
        ("#### 9007199254740993", "9007199254740992", 0.0),
        (f"#### {'9' * 400}", f"{'8' * 400}", 0.0),
        (f"#### {'9' * 400}", "inf", 0.0),
        ("#### 7", "", 0.0),
        ("#### 7", "seven", 0.0),
        ("#### 7", "nan", 0.0),
        ("#### 0.1", "0.10000000000000000001", 0.0),
    ],
)
def test_an_answer_is_right_when_it_is_the_same_number(text: str, answer: str, reward: float) -> None:
    assert right(text, answer) == reward


def test_a_reward_that_nobody_can_win_is_refused() -> None:
    with pytest.raises(DataError, match="no prompt has one"):
        check_answers({"correct": 1.0, "format": 0.2}, ["", ""], "data/prompts.parquet")
    check_answers({"correct": 1.0}, ["", "7"], "")
    check_answers({"model": 1.0}, ["", ""], "")
    check_answers({"correct": 0.0, "format": 1.0}, [""], "")


@pytest.mark.parametrize("noise", [0.0, 1e-300, 1e-9, 0.001])
def test_an_annotator_with_little_noise_does_not_err(noise: float) -> None:
    rng = random.Random(0)
    assert all(_prefers(gap, noise, rng) == (gap > 0) for gap in (1e12, 1.0, -1.0, -1e12) for _ in range(100))
