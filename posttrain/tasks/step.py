"""A step of an episode: a task's answer to a completion of the policy."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from posttrain.errors import excerpt, shortened
from posttrain.measure.masking import masked
from posttrain.rollout import Message, Rollout
from posttrain.settings.user_code import place_in_own_code

ROLES = ("user", "tool")
"""The roles of a task's turns."""


@dataclass(frozen=True)
class Step:
    """A task's answer to a completion.

    Example: `Step([{"role": "tool", "content": "42"}], reward=0.1, info={"calls": 1})`
    """

    messages: Sequence[Message] = ()
    """The turns that are shown to the policy next. If there are none, the episode ends."""
    reward: float = 0.0
    """The reward of this completion. The reward `turns` adds up the rewards of an episode."""
    done: bool = False
    """True if the episode ends here. If so, the messages are dropped and the policy never sees them."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """Plain JSON for rewards and tables. Later steps replace keys of earlier ones."""


@dataclass(frozen=True)
class StepFailure:
    """The reason why a task failed to return a step. The episode ends, and no reward scores it."""

    finish: Literal["timeout", "error"]
    reason: str


Reply = Callable[[Rollout], Step | Sequence[Message] | None]
"""The episode so far -> its next step. A plain list of turns is also a step; None ends the episode."""


def take_step(reply: Reply, rollout: Rollout) -> Step | StepFailure:
    """Return the step after the rollout's last completion; a failure if the task raises or returns something else."""
    where = f"`reply` of task '{rollout.prompt.task}'"
    try:
        return _checked(reply(rollout))
    except _WrongStepError as error:
        return StepFailure("error", f"{where} returned {error}")
    except Exception as error:  # noqa: BLE001  whatever a task raises: this episode has no next step
        text = shortened(masked(str(error)), 300)
        return StepFailure("error", f"{where} raised {type(error).__name__}: {text}{place_in_own_code(error)}")


class _WrongStepError(Exception):
    """A step has the wrong form."""


def _checked(returned: Any) -> Step:
    if returned is None:
        return Step()
    if isinstance(returned, list | tuple):
        returned = Step(returned)
    if not isinstance(returned, Step):
        raise _WrongStepError(f"{excerpt(returned, 80)}. Return a Step, a list of turns, or None to end the episode")
    messages = [dict(message) for message in returned.messages]
    if odd := next((message for message in messages if not _is_turn(message)), None):
        raise _WrongStepError(f"the turn {excerpt(odd, 80)}. A turn is {{role: user or tool, content: text}}")
    reward = float(returned.reward)
    if not math.isfinite(reward):
        raise _WrongStepError(f"the reward {reward}. Return a finite number")
    return Step(messages, reward, bool(returned.done), json.loads(json.dumps(dict(returned.info), allow_nan=False)))


def _is_turn(turn: Mapping[str, Any]) -> bool:
    return set(turn) == {"role", "content"} and turn["role"] in ROLES and isinstance(turn["content"], str)
