"""The task `guess`: find a number in a few guesses, each answered by `higher` or `lower`.

Demonstrations guess at random among the numbers that are left; halving them finds every number in time.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Final

import polars as pl
from pydantic import Field

from posttrain.data.columns import Kind
from posttrain.errors import excerpt
from posttrain.rollout import Message, Rollout
from posttrain.tasks.step import Step
from posttrain.tasks.task import Generator, Task

from .tables import Game, Problem, TurnsParams

GUESSES: Final = 4
WASTED: Final = -1.0
"""The reward of a guess that cannot be right: no number, out of range, or against a hint."""
_RANGE: Final = re.compile(r"from ([0-9]+) to ([0-9]+)")


class GuessParams(TurnsParams):
    """The range of the numbers."""

    largest: int = Field(150, ge=16, le=999, description="the largest number of all problems")
    width: int = Field(
        12, ge=4, le=15, description="how many numbers a secret can be; halving finds any of them within 4 guesses"
    )


def _draw(rng: random.Random, params: GuessParams) -> Problem:
    low = rng.randint(1, params.largest - params.width + 1)
    high = low + params.width - 1
    secret = rng.randint(low, high)
    return Problem(f"{low}-{high}:{secret}", f"Guess my number from {low} to {high}.", str(secret))


def _demonstrate(rng: random.Random, problem: Problem) -> Sequence[Message]:
    low, high = _bounds(problem.question)
    secret, turns = int(problem.answer), list[Message]()
    while True:
        guess = rng.randint(low, high)
        turns.append({"role": "assistant", "content": str(guess)})
        if guess == secret:
            return turns
        turns.append({"role": "user", "content": _hint(guess, secret)})
        low, high = (guess + 1, high) if guess < secret else (low, guess - 1)


def _tables(params: GuessParams) -> dict[Kind, pl.DataFrame]:
    return Game(lambda rng: _draw(rng, params), _demonstrate, _demonstrate).tables(params)


def reply(rollout: Rollout) -> Step:
    """Return a hint, and a reward below 0 for a guess that cannot be right."""
    guess, secret = _number(rollout.text), int(rollout.prompt.answer)
    low, high = _left(rollout)
    reward = 0.0 if guess is not None and low <= guess <= high else WASTED
    info = {"guesses": rollout.info.get("guesses", 0) + 1, "wasted": rollout.info.get("wasted", 0) + (reward < 0)}
    if guess == secret:
        return Step(reward=reward, done=True, info={**info, "found": True})
    hint = "a number" if guess is None else _hint(guess, secret)
    return Step([{"role": "user", "content": hint}], reward, info=info)


def metrics(rollouts: Sequence[Rollout], outcomes: Sequence[float]) -> dict[str, float]:  # noqa: ARG001
    """Return the mean number of guesses per episode, and the share of guesses that cannot be right."""
    guesses = sum(rollout.info.get("guesses", 0) for rollout in rollouts)
    wasted = sum(rollout.info.get("wasted", 0) for rollout in rollouts)
    return {"guesses": guesses / len(rollouts), "wasted": wasted / max(guesses, 1)}


def _left(rollout: Rollout) -> tuple[int, int]:
    """Return the smallest and largest number that the earlier hints leave."""
    low, high = _bounds(rollout.prompt.messages[-1]["content"])
    secret = int(rollout.prompt.answer)
    for turn in rollout.turns[:-1]:
        guess = _number(turn["content"]) if turn["role"] == "assistant" else None
        if guess is not None and guess < secret:
            low = max(low, guess + 1)
        if guess is not None and guess > secret:
            high = min(high, guess - 1)
    return low, high


def _bounds(question: str) -> tuple[int, int]:
    match = _RANGE.search(question)
    if match is None:
        raise ValueError(f"no range in {excerpt(question, 80)}")
    return int(match[1]), int(match[2])


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[0-9]{1,4}", text.strip()) else None


def _hint(guess: int, secret: int) -> str:
    return "higher" if guess < secret else "lower"


TASKS = {
    "guess": Task(
        Generator(GuessParams, ("corpus", "chat", "prompts"), _tables),
        reply=reply,
        turns=GUESSES,
        reward_options={"correct": {"find": "last"}},
        metrics=metrics,
    )
}
