"""The tasks `sums`, `stories`, `products` and `sequences`: arithmetic for models that understand plain English."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import polars as pl
from pydantic import Field, model_validator

from posttrain.data.columns import Kind, Split, from_rows
from posttrain.measure.record import note
from posttrain.tasks.task import Generator, Task

from ..counts import Counts
from ..drawing import draw_problems
from .problems import (
    Draw,
    Problem,
    Range,
    draw_product,
    draw_sequence,
    draw_story,
    draw_sum,
)

MARK: Final = "The answer is"


class ArithmeticParams(Counts):
    """Difficulty and number of the problems."""

    seed: int = Field(0, ge=0, description="draws the problems")
    fewest: int = Field(2, ge=2, le=9, description="minimum number of operands in a problem")
    most: int = Field(3, ge=2, le=9, description="maximum number of operands in a problem")
    largest: int = Field(50, ge=2, le=9_999, description="the largest number; for sums, the largest result")
    worked_share: float = Field(0.5, ge=0, le=1, description="share of the demonstrations that show the working")

    @model_validator(mode="after")
    def _in_order(self) -> ArithmeticParams:
        if self.fewest > self.most:
            raise ValueError(f"fewest ({self.fewest}) must be <= most ({self.most})")
        return self


def _tables(draw: Draw, params: ArithmeticParams) -> dict[Kind, pl.DataFrame]:
    """Return the tables `chat` and `prompts`. Each part has its own random stream."""
    note(seed=params.seed)
    sizes = params.sizes()
    chat = [
        {**_row(split, problem), "messages": [*_prompt(problem), {"role": "assistant", "content": answer}]}
        for split, size in sizes["chat"].items()
        for problem, answer in _demonstrations(draw, params, split, size)
    ]
    prompts = [
        {**_row(split, problem), "prompt": _prompt(problem), "answer": str(problem.answer), "info": "{}", "task": ""}
        for split, size in sizes["prompts"].items()
        for problem in _problems(draw, params, "prompts", split, size)
    ]
    return {"chat": from_rows(chat, "chat"), "prompts": from_rows(prompts, "prompts")}


def _row(split: Split, problem: Problem) -> dict[str, Any]:
    return {"split": split, "problem": problem.key}


def _prompt(problem: Problem) -> list[dict[str, str]]:
    return [{"role": "user", "content": problem.question}]


def _demonstrations(draw: Draw, params: ArithmeticParams, split: Split, size: int) -> Iterator[tuple[Problem, str]]:
    """Yield problems with their answers. Some answers show the working."""
    rng = random.Random(f"{params.seed}:worked:{split}")
    for problem in _problems(draw, params, "chat", split, size):
        working = problem.working if rng.random() < params.worked_share else ()
        yield problem, " ".join([*(f"{step}." for step in working), f"{MARK} {problem.answer}."])


def _problems(draw: Draw, params: ArithmeticParams, kind: Kind, split: Split, size: int) -> list[Problem]:
    given = Range(params.fewest, params.most, params.largest)
    return draw_problems(lambda rng: draw(rng, given), params.seed, kind, split, size)


def _task(draw: Draw) -> Task:
    """Return a task whose answer is the last number.

    A model that was never trained on the form is then judged fairly.
    """
    generator = Generator(ArithmeticParams, ("chat", "prompts"), partial(_tables, draw))
    return Task(generator, reward_options={"correct": {"find": "last"}, "format": {"after": MARK}})


TASKS = {
    "sums": _task(draw_sum),
    "stories": _task(draw_story),
    "products": _task(draw_product),
    "sequences": _task(draw_sequence),
}
