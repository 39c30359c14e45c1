"""A run does not start with a reward that scores known answers wrong."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from posttrain.errors import RewardError
from posttrain.models.device import DeviceParams, Runtime
from posttrain.rewards.canaries import check_canaries
from posttrain.rewards.reward import Context, Examples, NoOptions, WeightedReward, rule
from posttrain.rewards.score import RewardSum
from posttrain.rollout import Prompt, Rollout, Score

PROMPTS = [Prompt(f"p{i}", [{"role": "user", "content": "?"}], [1], str(i)) for i in range(4)]


def examples(prompt: Prompt, options: NoOptions) -> Examples:
    return Examples([f"it is {prompt.answer}"], ["it is unknown"])


def checked(function: Callable[[Rollout, Any], Any]) -> None:
    reward = rule(NoOptions, examples=examples)(function)
    terms = {"mine": WeightedReward(reward=reward)}
    check_canaries(RewardSum(terms, Context(Runtime(DeviceParams()), "test")), PROMPTS, "online.runs.a")


def test_a_reward_that_scores_known_answers_right_may_start() -> None:
    checked(lambda rollout, options: float(rollout.text == f"it is {rollout.prompt.answer}"))
    checked(lambda rollout, options: Score(0.0, "unparseable") if "unk" in rollout.text else 1.0)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda rollout, options: 0.0, "a right completion of prompt p0 scores 0: 'it is 0'"),
        (lambda rollout, options: 1.0, "a wrong completion of prompt p0 scores 1: 'it is unknown'"),
        (lambda rollout, options: 1 / 0, "(error: it raised ZeroDivisionError"),
        (lambda rollout, options: Score(0.0, "unparseable", "no box"), "scores 0 (unparseable: no box)"),
    ],
)
def test_a_reward_that_does_not_stops_the_run_with_examples(function: Any, said: str) -> None:
    with pytest.raises(RewardError, match=re.escape(said)) as caught:
        checked(function)
    assert caught.value.where == "online.runs.a.reward.mine" and "docs/rewards.md" in str(caught.value)
