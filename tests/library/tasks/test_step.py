"""A step of an episode, and what is no step."""

from __future__ import annotations

import math
from typing import Any

import pytest

from posttrain.tasks.step import Step, StepFailure, take_step
from tests.library.models.tiny import rollout_of

TURN = {"role": "tool", "content": "4"}


def taken(returned: Any) -> Step | StepFailure:
    return take_step(lambda rollout: returned, rollout_of("", task="mine"))


def test_steps() -> None:
    assert taken(None) == Step() and taken([TURN]) == Step([TURN])
    given = Step([TURN], 1, done=True, info={"a": (1, 2)})
    assert taken(given) == Step([TURN], 1.0, done=True, info={"a": [1, 2]})


@pytest.mark.parametrize(
    ("returned", "reason"),
    [
        (3, "returned 3. Return a Step"),
        ([{"role": "assistant", "content": "a"}], "returned the turn"),
        ([{"role": "user", "content": 3}], "returned the turn"),
        (Step(reward=math.inf), "returned the reward inf. Return a finite number"),
        (Step(info={"a": math.nan}), "raised ValueError"),
    ],
)
def test_what_is_no_step(returned: Any, reason: str) -> None:
    found = taken(returned)
    assert isinstance(found, StepFailure) and found.finish == "error"
    assert found.reason.startswith(f"`reply` of task 'mine' {reason}")
