"""The task `calculator`: products that a tiny model cannot compute, and a tool that computes them.

The policy writes `calc 47*86`, the tool's turn is `4042`, and the answer follows: `#### 4042`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final

import polars as pl
from pydantic import Field

from posttrain.data.columns import Kind
from posttrain.rollout import Message, Rollout
from posttrain.tasks.step import Step
from posttrain.tasks.task import Generator, Task

from .arithmetic import calculate
from .tables import Game, Problem, TurnsParams

CALL: Final = "calc "
MARK: Final = "####"
WORDS: Final = {"+": "plus", "-": "minus", "*": "times"}


class CalculatorParams(TurnsParams):
    """Difficulty of the problems, and share of demonstrations that use the tool."""

    operators: int = Field(1, ge=1, le=9, description="the operators of a problem")
    smallest: int = Field(10, ge=2, le=999, description="the smallest number of a problem")
    largest: int = Field(99, ge=20, le=9_999, description="the largest number of a problem")
    direct_share: float = Field(
        0.5, ge=0, le=1, description="share of the demonstrations that give the answer without a call"
    )


def _draw(rng: random.Random, params: CalculatorParams) -> Problem:
    words = [str(rng.randint(params.smallest, params.largest))]
    for _ in range(params.operators):
        words += [rng.choice([*WORDS]), str(rng.randint(params.smallest, params.largest))]
    expression = "".join(words)
    question = f"What is {' '.join(WORDS.get(word, word) for word in words)}?"
    return Problem(expression, question, str(calculate(expression)))


def _demonstrate(rng: random.Random, problem: Problem, *, direct: bool) -> Sequence[Message]:  # noqa: ARG001
    answer: Message = {"role": "assistant", "content": f"{MARK} {problem.answer}"}
    if direct:
        return [answer]
    call = {"role": "assistant", "content": f"{CALL}{problem.key}"}
    return [call, {"role": "tool", "content": problem.answer}, answer]


def _tables(params: CalculatorParams) -> dict[Kind, pl.DataFrame]:
    def demonstrate(rng: random.Random, problem: Problem) -> Sequence[Message]:
        return _demonstrate(rng, problem, direct=rng.random() < params.direct_share)

    def called(rng: random.Random, problem: Problem) -> Sequence[Message]:
        return _demonstrate(rng, problem, direct=False)

    return Game(lambda rng: _draw(rng, params), demonstrate, called).tables(params)


def reply(rollout: Rollout) -> Step:
    """Return the value of the expression after `calc`. Any other completion counts as the answer."""
    text = rollout.text.strip()
    if not text.startswith(CALL.strip()):
        return Step(done=True)
    calls = {"calls": rollout.info.get("calls", 0) + 1}
    try:
        result = str(calculate(text.removeprefix(CALL.strip())))
    except ValueError as error:
        errors = {"call_errors": rollout.info.get("call_errors", 0) + 1}
        return Step([{"role": "tool", "content": f"error: {error}"}], info=calls | errors)
    return Step([{"role": "tool", "content": result}], info=calls)


def metrics(rollouts: Sequence[Rollout], outcomes: Sequence[float]) -> dict[str, float]:
    """Return the shares of episodes with a call, of right answers among these, and of episodes with a failed call."""
    right = [value for rollout, value in zip(rollouts, outcomes, strict=True) if rollout.info.get("calls")]
    failed = sum(bool(rollout.info.get("call_errors")) for rollout in rollouts)
    return {
        "calling": len(right) / len(rollouts),
        "right_given_call": sum(right) / len(right) if right else 0.0,
        "call_errors": failed / len(rollouts),
    }


OPTIONS: dict[str, dict[str, Any]] = {"correct": {"after": MARK}, "format": {"after": MARK}}
TASKS = {
    "calculator": Task(
        Generator(CalculatorParams, ("corpus", "chat", "prompts"), _tables),
        reply=reply,
        turns=3,
        reward_options=OPTIONS,
        metrics=metrics,
    )
}
