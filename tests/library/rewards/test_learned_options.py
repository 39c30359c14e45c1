"""What learned rewards do not score as it stands: completions that were cut off, and thoughts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from posttrain.errors import ParamsError
from posttrain.rewards.catalog import Rewards
from posttrain.rewards.composition import REWARDS as COMPOSED
from posttrain.rewards.composition import CascadeOptions, MilestoneOptions
from posttrain.rewards.learned_options import LearnedOptions, shown, without_thoughts
from posttrain.rewards.reward import Context, Reward, WeightedReward
from posttrain.rewards.score import CUT, RewardSum, at_most
from posttrain.rollout import Prompt, Rollout, Score, TokenRow
from posttrain.settings.params import Params, check
from tests.library.models.tiny import rollout_of

THOUGHTS = [
    ("4", "4"),
    ("<think>2 + 2</think>4", "4"),
    ("<think>2 + 2</think>\n\n4 \n", "4 \n"),
    ("it opens them itself</think> 4", "4"),
    ("<think>a</think>5<think>b</think>4", "4"),
    ("<think>a</think>", ""),
    ("<think>2 + 2 is 4", ""),
    ("4 <think>or 5", ""),
    ("<think>a</think>4<think>or 5", ""),
    ("</think>4</think>5", "5"),
    ("<thinking>4", "<thinking>4"),
    ("", ""),
]


@pytest.mark.parametrize(("text", "left"), THOUGHTS)
def test_what_is_left_without_thoughts(text: str, left: str) -> None:
    assert without_thoughts(text, "<think>") == left
    assert without_thoughts(text.replace("think>", "plan>"), "<plan>") == left.replace("think>", "plan>")


def test_a_rollout_without_thoughts_is_the_same_rollout() -> None:
    plain, thinks = rollout_of("4"), rollout_of("<think>2</think>4")
    assert shown(plain, "<think>") is plain and shown(thinks, None) is thinks
    left = shown(thinks, "<think>")
    assert left.text == "4" and left.row == TokenRow((), ()), "its tokens are not those of the text that is left"


def test_thoughts_are_hidden_in_each_turn_of_the_policy_alone() -> None:
    turns = [
        {"role": "assistant", "content": "<think>a</think>b"},
        {"role": "tool", "content": "<think>c</think>d"},
        {"role": "assistant", "content": "e"},
    ]
    left = shown(replace(rollout_of("e"), turns=turns), "<think>")
    assert [turn["content"] for turn in left.turns] == ["b", "<think>c</think>d", "e"] and left.text == "e"


class Terms(Params):
    reward: Rewards


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hide": "think"}, "reward.*hide = 'think': expected a tag, e.g. <think>"),
        ({"hide": "</think>"}, "expected a tag, e.g. <think>"),
        ({"truncated": "lowest"}, "truncated = 'lowest': expected a number, or score"),
        ({"truncated": None}, "truncated = None: expected a number, or score"),
        ({"truncate": 0.0}, "Did you mean 'truncated'"),
    ],
)
@pytest.mark.parametrize("name", ["model", "judge", "endpoint"])
def test_unknown_values_are_refused(name: str, options: dict[str, Any], message: str) -> None:
    served = {} if name == "model" else {"url": "http://h/v1", "model": "m"}
    with pytest.raises(ParamsError, match=message):
        check(Terms, {"reward": {name: {**served, **options}}}, where="x")
    known = check(Terms, {"reward": {name: {**served, "truncated": -2, "hide": "<plan>"}}}, where="x")
    assert known.reward[name].options.model_dump().items() >= {"truncated": -2.0, "hide": "<plan>"}.items()
    usual = check(Terms, {"reward": {name: served}}, where="x").reward[name].options
    assert usual.model_dump().items() >= {"truncated": 0.0, "hide": "<think>"}.items()


def group(*values: float | Score, prompt: str = "p", cut: Sequence[int] = ()) -> list[tuple[Rollout, Score]]:
    """Samples of one prompt with their scores."""
    return [
        (
            replace(rollout_of(str(nth), truncated=nth in cut), prompt=Prompt(prompt, [], [])),
            value if isinstance(value, Score) else Score(value),
        )
        for nth, value in enumerate(values)
    ]


def limited(*groups: list[tuple[Rollout, Score]], limit: float = 0.0, sign: int = 1) -> list[Score]:
    rollouts, scores = zip(*(pair for one in groups for pair in one), strict=True)
    return at_most(limit, rollouts, scores, sign)


def test_a_cut_completion_gets_the_lowest_score_of_its_prompt() -> None:
    found = limited(group(-1.0, -3.0, 2.0, cut=[2]), group(5.0, 4.0, prompt="q", cut=[0]))
    assert [one.value for one in found] == [-1.0, -3.0, -3.0, 0.0, 4.0]
    assert [one.reason for one in found] == ["", "", CUT, CUT, ""]
    assert [one.value for one in limited(group(-1.0, -3.0, cut=[0, 1]))] == [-3.0, -3.0], "none ended: all are equal"
    assert [one.value for one in limited(group(1.0, 3.0, cut=[0]), limit=-5.0)] == [-5.0, 3.0]
    assert [one.value for one in limited(group(1.0, 3.0, -2.0, cut=[0]), sign=-1)] == [3.0, 3.0, -2.0]
    assert [one.value for one in limited(group(-1.0, -3.0, cut=[0]), sign=-1)] == [0.0, -3.0]


def test_scores_that_failed_decide_nothing_and_stay() -> None:
    down = Score(-9.0, "infrastructure", "down")
    assert limited(group(-1.0, down, 2.0, cut=[2])) == [Score(-1.0), down, Score(-1.0, reason=CUT)]
    assert limited(group(down, -1.0, cut=[0])) == [down, Score(-1.0)]


@pytest.mark.parametrize("sign", [1, -1])
def test_being_cut_off_never_pays(sign: int) -> None:
    """Not next to another sample of the prompt, and not next to the same completion that ended."""
    draw = random.Random(0)
    for _ in range(300):
        values = [draw.gauss(draw.choice([-9, 0, 9]), 3) for _ in range(draw.randint(1, 6))]
        cut = [nth for nth in range(len(values)) if draw.random() < 0.5]
        found = [
            sign * one.value for one in limited(group(*values, cut=cut), limit=draw.choice([0.0, -4.0]), sign=sign)
        ]
        assert [found[nth] for nth in range(len(values)) if nth not in cut] == [
            sign * value for nth, value in enumerate(values) if nth not in cut
        ]
        for nth in cut:
            assert found[nth] <= sign * values[nth], "its own score, as if it had ended"
            assert found[nth] == min(found), "so its advantage is at most 0"


def test_the_last_step_takes_the_difference() -> None:
    steps = Score(2.0, steps=[(3, 1.5), (5, 0.5)])
    (found,) = limited(group(steps, cut=[0]))
    assert found.value == 0.0 and found.steps == [(3, 1.5), (5, -1.5)]
    (found,) = limited(group(Score(2.0), cut=[0]))
    assert found.value == 0.0 and found.steps == ()


LENGTH = Reward(
    lambda options, context: lambda rollouts: [float(len(one.text) - 5) for one in rollouts],
    LearnedOptions,
    most_if_cut=lambda options: options.most_if_cut,
)
"""The longer, the better, from -5 up: without a bound below, as a reward model's score."""


def scored(terms: dict[str, WeightedReward], *texts: str, cut: Sequence[int] = ()) -> tuple[list[Rollout], list[float]]:
    rewards = RewardSum(terms, Context(None, "test"))
    found = rewards.score([rollout_of(text, truncated=nth in cut) for nth, text in enumerate(texts)])
    return found, rewards.totals(found)


def term(reward: Reward[Any] = LENGTH, options: Params | None = None, **settings: Any) -> WeightedReward:
    return WeightedReward(reward=reward, options=options or LearnedOptions(), **settings)


def test_a_sum_counts_the_lowered_score() -> None:
    rollouts, totals = scored({"a": term()}, "aaaa", "a" * 9, "aaa", cut=[1])
    assert totals == [-1.0, -2.0, -2.0] and rollouts[1].scores["a"] == Score(-2.0, reason=CUT)
    assert scored({"a": term(options=LearnedOptions(truncated="score"))}, "a", "a" * 9, cut=[1])[1] == [-4.0, 4.0]
    _, (first, second, third) = scored({"a": term(normalise=True)}, "aaaa", "a" * 9, "aaa", cut=[1])
    assert second == third < first, "z-scores are those of the lowered scores"
    assert scored({"a": term(weight=-1.0)}, "a", "a" * 9, cut=[0])[1] == [-4.0, -4.0], "the highest is the worst"
    assert scored({"a": term(weight=-1.0)}, "a", "aa", cut=[0])[1] == [0.0, 3.0]
    assert scored({"b": term(weight=2.0), "a": term(gate=True)}, "a" * 9, "a" * 9, cut=[1])[1] == [8.0, 0.0]


def composed(name: str, options: Params, weight: float = 1.0) -> WeightedReward:
    reward: Any = COMPOSED[name]
    return term(reward, options, weight=weight)


def test_a_part_of_another_reward_is_lowered_too() -> None:
    unread: Reward[Any] = Reward(lambda options, context: lambda rollouts: [Score(0.0, "unparseable")] * len(rollouts))
    of = {"unread": WeightedReward(reward=unread), "a": term()}
    cascade = composed("cascade", CascadeOptions(of=of))
    rollouts, totals = scored({"c": cascade}, "aaaa", "a" * 9, cut=[1])
    assert totals == [-1.0, -1.0] and rollouts[1].scores["c"].reason == CUT
    negative = composed("cascade", CascadeOptions(of=of), weight=-1.0)
    assert scored({"c": negative}, "aaaa", "a" * 9, cut=[0])[1] == [-4.0, -4.0]
    milestones = composed("milestones", MilestoneOptions(of={"a": term(), "b": term()}))
    assert scored({"m": milestones}, "a" * 9, "a" * 9, cut=[1])[1] == [1.0, 0.0], "a milestone is not reached"
