"""The sum of rewards by hand: weights, gates, failures and means."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from posttrain.errors import RewardError
from posttrain.rewards.reward import Context, NoOptions, Reward, WeightedReward, rule
from posttrain.rewards.score import RewardSum, scored_by_first
from posttrain.rollout import Rollout, Score
from tests.library.models.tiny import rollout_of


@rule()
def length(rollout: Rollout, _: NoOptions) -> float:
    return float(len(rollout.text))


@rule()
def broken(rollout: Rollout, _: NoOptions) -> float:
    raise ValueError(rollout.text)


@rule(cannot_score=lambda prompt, options: "no answer")
def picky(rollout: Rollout, _: NoOptions) -> float:
    return 1.0


def term(reward: Reward[Any] = length, **settings: Any) -> WeightedReward:
    return WeightedReward(reward=reward, **settings)


def reward(**terms: WeightedReward) -> RewardSum:
    return RewardSum(terms, Context(None, "test"))


ROLLOUTS = [rollout_of("ab"), rollout_of("abcd")]


def test_the_weighted_sum() -> None:
    some = reward(a=term(weight=2.0), b=term(shaping=True, weight=0.5), c=term(weight=0.0))
    scored = some.score(ROLLOUTS)
    assert [one.scores["a"] for one in scored] == [Score(2.0), Score(4.0)]
    assert some.totals(scored) == [5.0, 10.0] and some.total(scored[1]) == 10.0
    assert some.outcome(scored[0]) == 4.0 and some.means(scored) == {"a": 3.0, "b": 3.0, "c": 3.0}
    assert some.only_measured == ["c"] and some.failure(scored[0]) is None
    assert reward(b=term(shaping=True)).outcome(scored[0]) == 2.0


def test_a_closed_gate_lets_nothing_above_0_through() -> None:
    negative = replace(ROLLOUTS[0], scores={"a": Score(3.0), "gate": Score(0.0)})
    some = reward(a=term(), gate=term(gate=True))
    assert some.total(negative) == 0.0 and some.outcome(negative) == 0.0
    assert some.total(replace(negative, scores={"a": Score(3.0), "gate": Score(1.0)})) == 3.0


def test_normalised_parts() -> None:
    some = reward(a=term(normalise=True))
    first, second = some.totals(some.score(ROLLOUTS))
    assert first == -second < 0


def test_failures() -> None:
    some = reward(a=term(broken), b=term())
    (scored,) = some.score(ROLLOUTS[:1])
    assert scored.scores["a"].status == "error" and math.isnan(some.means([scored])["a"])
    failed = some.failure(scored)
    assert failed is not None and failed[0] == "a"
    with pytest.raises(ValueError, match="reward 'a' has status error"):
        some.total(scored)
    (late,) = some.score([replace(ROLLOUTS[0], finish="timeout", reason="late")])
    assert late.scores == dict.fromkeys("ab", Score(0.0, "timeout", "late"))


def test_prompts_that_a_reward_cannot_judge() -> None:
    (scored,) = reward(a=term(picky)).score(ROLLOUTS[:1])
    assert scored.scores["a"] == Score(0.0, "unparseable", "it does not judge this prompt: no answer")
    reward(a=term(picky)).load([ROLLOUTS[0].prompt])


def test_one_score_for_each_rollout() -> None:
    few = Reward(lambda options, context: lambda rollouts: [1.0])
    with pytest.raises(RewardError, match="it gave 1 scores for 2 rollouts"):
        reward(a=term(few)).score(ROLLOUTS)
    assert [one.scores["a"].value for one in scored_by_first(reward(a=term()), ROLLOUTS)] == [2.0, 4.0]
