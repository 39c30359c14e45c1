"""The miniature task: answers follow `####`, and a completion may show its working."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from posttrain.measure.record import note
from posttrain.rollout import Rollout
from posttrain.tasks.task import Generator, Task

from .gains import explain_gain
from .tables import TwoStepParams, two_step

MARK = "####"


def working(rollouts: Sequence[Rollout], outcomes: Sequence[float]) -> dict[str, float]:
    """Return the share of completions that show a calculation, and the share of right answers among these."""
    right = [value for rollout, value in zip(rollouts, outcomes, strict=True) if "=" in rollout.text]
    share = len(right) / len(rollouts)
    return {"working": share, "right_given_working": sum(right) / len(right) if right else 0.0}


def _tables(params: TwoStepParams) -> dict[Any, Any]:
    note(seed=params.seed)
    return two_step(params)


TASKS = {
    "two_step": Task(
        generator=Generator(TwoStepParams, ("corpus", "chat", "prompts"), _tables),
        reward_options={"correct": {"after": MARK}, "format": {"after": MARK}},
        metrics=working,
        explain=explain_gain,
    )
}
