"""What a reward is: scores of plain numbers, errors as statuses, weights."""

from __future__ import annotations

import math
from typing import Any

import pytest

from posttrain.errors import DataError
from posttrain.rewards.numeric import NumericOptions
from posttrain.rewards.reward import (
    Context,
    NoOptions,
    Reward,
    WeightedReward,
    as_score,
    guarded,
    raised,
    rule,
    score_one,
    weights,
)
from posttrain.rollout import Rollout, Score
from tests.library.models.tiny import rollout_of


@rule(by_step=True)
def length(rollout: Rollout, _: NoOptions) -> float:
    return float(len(rollout.text))


def term(**settings: Any) -> WeightedReward:
    return WeightedReward(reward=settings.pop("reward", length), **settings)


def test_place() -> None:
    assert Context(None, "online.runs.a", name="short").place == "online.runs.a.reward.short"


def test_rule_makes_a_reward_of_one_rollout() -> None:
    assert length.score_fn(NoOptions(), Context(None, "test"))([rollout_of("abc")]) == [Score(3.0)]
    assert length.by_step(NoOptions()) is True and length.compares(NoOptions()) is False
    assert length.cannot_score(rollout_of("").prompt, NoOptions()) is None


def test_async_functions_run_in_workers() -> None:
    async def later(rollout: Rollout, options: NoOptions) -> float:
        return 1.0

    assert rule()(later).in_workers(NoOptions()) and not length.in_workers(NoOptions())
    assert Reward(length.score_fn, isolated=lambda options: True).in_workers(NoOptions())


def test_score_one_and_guarded() -> None:
    def fails(rollout: Rollout, options: object) -> float:
        raise ValueError("no")

    assert score_one(lambda rollout, options: 2, rollout_of(""), None) == Score(2.0)
    found = score_one(fails, rollout_of(""), None)
    assert found.status == "error" and found.reason.startswith("it raised ValueError: no")
    assert [one.status for one in guarded(lambda: fails(rollout_of(""), None), 2)] == ["error", "error"]

    def ours() -> list[Any]:
        raise DataError(what="w", where="h", fix="f")

    with pytest.raises(DataError):
        guarded(ours, 1)


def test_as_score() -> None:
    assert as_score(1) == Score(1.0) and as_score(Score(1, steps=[(2, 3)])) == Score(1.0, steps=((2, 3.0),))
    assert as_score("1").reason == "it returned '1'. Return a number or a Score"
    assert as_score(math.nan) == Score(0.0, "error", "nan is not finite")


def test_raised() -> None:
    assert raised(KeyError("a")) == Score(0.0, "error", "it raised KeyError: 'a'")


def test_weighted_rewards() -> None:
    shaped = term(shaping=True, weight=2.0)
    assert (shaped.counted, shaped.outcome, shaped.judges_form) == (2.0, False, True)
    plain = term()
    assert (plain.counted, plain.outcome, plain.judges_form) == (1.0, True, False)
    assert term(gate=True).counted == 0.0
    with pytest.raises(ValueError, match="a gate is not added"):
        term(gate=True, weight=1.0)
    assert weights({"a": shaped, "gate": term(gate=True), "none": term(weight=0.0)}) == {"a": 2.0}


def test_options_of_a_task_fill_what_the_user_leaves_open() -> None:
    given = term(type="correct", options=NumericOptions(find="last"))
    found = given.options_for({"correct": {"after": "####", "find": "end"}})
    assert found == NumericOptions(after="####", find="last")
