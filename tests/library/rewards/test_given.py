"""Rewards as a script gives them become weighted rewards, or errors that say what to write."""

from __future__ import annotations

from typing import Any

import pytest

from posttrain.errors import ParamsError
from posttrain.rewards.given import terms_given, with_terms
from posttrain.rewards.length import of_length
from posttrain.rewards.numeric import NumericOptions
from posttrain.rewards.reward import Context, NoOptions, Reward, rule
from posttrain.rollout import Rollout, Score
from tests.library.models.tiny import rollout_of


def short(rollouts: Any) -> list[float]:
    return [-float(len(one.text)) for one in rollouts]


@rule()
async def waiting(rollout: Rollout, _: NoOptions) -> float:
    return float(len(rollout.text))


@rule()
def plain(rollout: Rollout, _: NoOptions) -> float:
    return float(len(rollout.text))


CONTEXT = Context(None, "test")


def scores(reward: Reward[Any], options: Any, *texts: str) -> list[float]:
    found = reward.score_fn(options, CONTEXT)([rollout_of(text) for text in texts])
    return [one.value if isinstance(one, Score) else one for one in found]


def test_a_function_has_its_own_name_and_weight_1() -> None:
    ((name, term),) = terms_given(short).items()
    assert (name, term.weight, term.reward.isolated) == ("short", 1.0, False)
    assert scores(term.reward, term.options, "ab", "c") == [-2, -1]


def test_a_mapping_has_weights_settings_and_rewards() -> None:
    found = terms_given({
        "own": (short, 0.5), "format": 0.2, "long": {"type": "length", "target": 3}, "each": plain,
        "half": (plain, 0.5),
    })  # fmt: skip
    assert {name: term.weight for name, term in found.items()} == {
        "own": 0.5, "format": 0.2, "long": 1.0, "each": 1.0, "half": 0.5,
    }  # fmt: skip
    assert isinstance(found["format"].options, NumericOptions) and found["long"].reward is of_length
    assert found["each"].reward.isolated is False and scores(found["each"].reward, NoOptions(), "abc") == [3]


def test_an_async_function_runs_in_this_process() -> None:
    term = terms_given({"later": waiting})["later"]
    assert term.reward.isolated is False
    assert scores(term.reward, term.options, "abc", "d") == [3, 1]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "there is no reward"),
        (lambda rollouts: [0.0], "a lambda has no name"),
        ("correct", "correct"),
        ([short], "it is a list"),
        ({"a": (short, True)}, "its weight is True"),
        ({"a": "b"}, "it is 'b'"),
        ({"nothing": 1.0}, "nothing"),
    ],
)
def test_what_is_no_reward_is_refused(given: Any, message: str) -> None:
    with pytest.raises(ParamsError, match=message):
        terms_given(given)


def test_with_terms_replaces_functions_alone() -> None:
    found = with_terms({"reward": short, "watch": {"reward": {"own": short}, "every": 2}, "seed": 1})
    assert set(found["reward"]) == {"short"} and set(found["watch"]["reward"]) == {"own"}
    assert (found["watch"]["every"], found["seed"]) == (2, 1)
    names = {"reward": {"format": 1.0}, "watch": None}
    assert with_terms(names) == names
