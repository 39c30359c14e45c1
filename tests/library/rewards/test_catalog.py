"""Rewards by name, their settings, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter

from posttrain.errors import ParamsError
from posttrain.rewards.catalog import (
    REWARDS,
    Metrics,
    Rewards,
    learned,
    metric_settings,
    need_a_weight,
    need_reward_model,
    refuse_learned,
    refuse_metrics,
    refuse_unread_model,
    reward_named,
    term,
    with_metrics,
)


def rewards(**given: Any) -> dict[str, Any]:
    return TypeAdapter(Rewards).validate_python(given)


def metrics(given: Any) -> dict[str, Any]:
    return TypeAdapter(Metrics).validate_python(given)


def test_names() -> None:
    assert reward_named("length", "reward") is REWARDS["length"]
    with pytest.raises(ValueError, match="unknown reward 'lenght'"):
        reward_named("lenght", "reward")


def test_terms() -> None:
    found = rewards(correct=2, short={"type": "length", "limit": 9, "shaping": False})
    assert (found["correct"].weight, found["correct"].type) == (2.0, "correct")
    assert (found["short"].type, found["short"].options.limit, found["short"].shaping) == ("length", 9, False)
    assert term("a", found["short"]) is found["short"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"nothing": 1.0}, "unknown reward 'nothing'"),
        ({"correct": "a"}, "'correct' is 'a'. Give a weight"),
        ({"correct": {"wieght": 1.0}}, "correct.wieght: unknown key. Did you mean 'weight'"),
        ({"correct": {"workers": 2}}, "workers"),
        ({"length": {}}, "give either target or limit"),
    ],
)
def test_terms_that_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rewards(**given)


def test_metrics() -> None:
    assert metric_settings(["a"]) == {"a": {}} and metric_settings({"a": None}) == {"a": {}} and metric_settings(3) == 3
    assert metric_settings([3]) == [3]
    found = metrics(["correct", "format"])
    assert [one.weight for one in found.values()] == [0.0, 0.0]
    with pytest.raises(ValueError, match="'correct' has weight: a metric only has options"):
        metrics({"correct": {"weight": 1.0}})
    with pytest.raises(ValueError, match="'correct' is 3: a metric only has options"):
        metrics({"correct": 3})


def test_weights_and_metrics_together() -> None:
    some, none = rewards(correct=1.0), rewards(correct=0.0)
    assert need_a_weight(some) is some and refuse_metrics(some) is some
    with pytest.raises(ValueError, match="all rewards have weight 0"):
        need_a_weight(none)
    with pytest.raises(ValueError, match="format: with weight 0 it is a metric"):
        refuse_metrics(rewards(correct=1.0, format=0.0))
    assert list(with_metrics(some, metrics(["format"]))) == ["correct", "format"]
    with pytest.raises(ValueError, match="'correct' is in reward and in metrics"):
        with_metrics(some, metrics(["correct"]))


def test_reward_models() -> None:
    plain, model = rewards(correct=1.0), rewards(correct=1.0, mine={"type": "model"})
    assert learned(plain) == {} and list(learned(model)) == ["mine"]
    need_reward_model(plain, "none")
    need_reward_model(model, "reward/main")
    with pytest.raises(ValueError, match="Set one"):
        need_reward_model(model, "none")
    with pytest.raises(ValueError, match="Add `model` to reward"):
        need_reward_model(plain, "reward/main")


def test_a_reward_model_and_its_reward_belong_together() -> None:
    learned, others = rewards(model=1.0), rewards(format=1.0)
    refuse_unread_model(learned)
    refuse_learned(others, "Give one")
    with pytest.raises(ParamsError, match="no reward uses it; the rewards are format"):
        refuse_unread_model(others)
    with pytest.raises(ParamsError, match="the reward 'model' needs a reward model, but none is given"):
        refuse_learned(learned, "Give one")
