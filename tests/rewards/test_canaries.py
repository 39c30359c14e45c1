"""A run does not start with a reward that scores known answers wrong."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from posttrain.errors import RewardError
from posttrain.models.device import DeviceParams, Runtime
from posttrain.params.params import Params
from posttrain.params.params import check as params_check
from posttrain.params.user_code import load_object
from posttrain.rewards.canaries import check_canaries
from posttrain.rewards.catalog import Rewards
from posttrain.rewards.reward import Context, Examples, NoOptions, Reward, WeightedReward, rule
from posttrain.rewards.score import RewardSum
from posttrain.rollout import Prompt, Rollout, Score

PROMPTS = [Prompt(f"p{i}", [{"role": "user", "content": "?"}], [1], str(i)) for i in range(4)]


def examples(prompt: Prompt, options: NoOptions) -> Examples:
    return Examples([f"it is {prompt.answer}"], ["it is unknown"])


def checked(function: Callable[[Rollout, Any], Any]) -> None:
    check(rule(NoOptions, examples=examples)(function))


def check(reward: Reward[Any]) -> None:
    terms = {"mine": WeightedReward(reward=reward)}
    check_canaries(RewardSum(terms, Context(Runtime(DeviceParams()), "test")), PROMPTS, "online.runs.a")


def test_a_reward_that_scores_known_answers_right_may_start() -> None:
    checked(lambda rollout, options: float(rollout.text == f"it is {rollout.prompt.answer}"))
    checked(lambda rollout, options: Score(0.0, "unparseable") if "unk" in rollout.text else 1.0)


@pytest.mark.slow
def test_a_cascade_passes_on_what_its_first_reward_cannot_read() -> None:
    class Settings(Params):
        reward: Rewards

    of = {"correct": {"answer": "math"}, "length": {"limit": 500}}
    terms = params_check(Settings, {"reward": {"cascade": {"of": of}}}, where="online.runs.a").reward
    question = "What is $17^2$, and is it odd?"
    prompts = [Prompt("p", [{"role": "user", "content": question}], [1], gold) for gold in ("289", "no solution")]
    check_canaries(RewardSum(terms, Context(Runtime(DeviceParams()), "test")), prompts, "online.runs.a")


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda rollout, options: 0.0, "a right completion of prompt p0 scores 0: 'it is 0'"),
        (lambda rollout, options: 1.0, "a wrong completion of prompt p0 scores 1: 'it is unknown'"),
        (lambda rollout, options: Score(0.0, "unparseable", "no box"), "scores 0 (unparseable: no box)"),
    ],
)
def test_a_reward_that_does_not_stops_the_run_with_examples(function: Any, said: str) -> None:
    with pytest.raises(RewardError, match=re.escape(said)) as caught:
        checked(function)
    assert caught.value.where == "online.runs.a.reward.mine" and "docs/rewards.md" in str(caught.value)


FAILING = """
from posttrain.rewards.reward import Examples, rule

@rule(examples=lambda prompt, options: Examples([prompt.answer], ["x"]))
def good(rollout, options):
    return len(rollout.reply)

@rule(examples=lambda prompt, options: Examples([prompt.reply]))
def unsure(rollout, options):
    return 1.0
"""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "good",
            ["failed on 8 of 8 completions", "AttributeError: 'Rollout' object has", "(raising_reward.py line 6)"],
        ),
        ("unsure", ["its `examples` raised AttributeError: 'Prompt' object has", "(raising_reward.py line 8)"]),
    ],
)
def test_a_reward_that_raises_is_said_to_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, said: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "raising_reward", raising=False)
    Path("custom").mkdir()
    Path("custom/raising_reward.py").write_text(FAILING)
    with pytest.raises(RewardError) as caught:
        check(load_object(f"raising_reward:{name}", "reward"))
    assert all(part in str(caught.value) for part in said) and "canaries: 0" not in str(caught.value)
