"""The tasks `sums`, `stories`, `products` and `sequences`: arithmetic for models that understand plain English."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import polars as pl
from pydantic import Field, model_validator

from posttrain.errors import ParamsError
from posttrain.measure.record import note
from posttrain.params import PARAMS_FILE
from posttrain.tables.columns import Kind, Split, from_rows
from posttrain.tables.splits import split_of
from posttrain.tasks.arithmetic.problems import (
    Draw,
    Problem,
    Range,
    draw_product,
    draw_sequence,
    draw_story,
    draw_sum,
)
from posttrain.tasks.counts import Counts
from posttrain.tasks.task import Generator, Task

MARK: Final = "The answer is"
HELDOUT_SHARE, TEST_SHARE = 0.1, 0.2
"""Shares of all problems; a problem's split is a hash of its own, whatever the seed."""
TRIES: Final = 100
"""Draws in a row that may give a problem again or one of another split before there are no more."""


class ArithmeticParams(Counts):
    """How difficult the problems are, and how many there are."""

    seed: int = Field(0, ge=0, description="draws the problems")
    fewest: int = Field(2, ge=2, le=9, description="the fewest numbers of a problem")
    most: int = Field(3, ge=2, le=9, description="the most numbers of a problem")
    largest: int = Field(50, ge=2, le=9_999, description="the largest number, and of sums the largest result")
    worked_share: float = Field(0.5, ge=0, le=1, description="share of the demonstrations that show their working")

    @model_validator(mode="after")
    def _in_order(self) -> ArithmeticParams:
        if self.fewest > self.most:
            raise ValueError(f"fewest = {self.fewest} is more than most = {self.most}")
        return self


def _tables(draw: Draw, params: ArithmeticParams) -> dict[Kind, pl.DataFrame]:
    """The tables `chat` and `prompts`; each part has a random stream of its own."""
    note(seed=params.seed)
    sizes = params.sizes()
    chat = [
        {**_row(split, one), "messages": [*_prompt(one), {"role": "assistant", "content": answer}]}
        for split, size in sizes["chat"].items()
        for one, answer in _demonstrations(draw, params, split, size)
    ]
    prompts = [
        {**_row(split, one), "prompt": _prompt(one), "answer": str(one.answer), "info": "{}", "task": ""}
        for split, size in sizes["prompts"].items()
        for one in _problems(draw, params, "prompts", split, size)
    ]
    return {"chat": from_rows(chat, "chat"), "prompts": from_rows(prompts, "prompts")}


def _row(split: Split, problem: Problem) -> dict[str, Any]:
    return {"split": split, "problem": problem.key}


def _prompt(problem: Problem) -> list[dict[str, str]]:
    return [{"role": "user", "content": problem.question}]


def _demonstrations(draw: Draw, params: ArithmeticParams, split: Split, size: int) -> Iterator[tuple[Problem, str]]:
    """Problems with their answers, a share of them with working."""
    rng = random.Random(f"{params.seed}:worked:{split}")
    for one in _problems(draw, params, "chat", split, size):
        working = one.working if rng.random() < params.worked_share else ()
        yield one, " ".join([*(f"{step}." for step in working), f"{MARK} {one.answer}."])


def _problems(draw: Draw, params: ArithmeticParams, kind: Kind, split: Split, size: int) -> list[Problem]:
    """Different problems of a split."""
    rng = random.Random(f"{params.seed}:{kind}:{split}")
    found: dict[str, Problem] = {}
    tries = 0
    while len(found) < size:
        one = draw(rng, Range(params.fewest, params.most, params.largest))
        mine = split_of(one.key, heldout_share=HELDOUT_SHARE, test_share=TEST_SHARE) == split
        tries = 0 if mine and one.key not in found else tries + 1
        if mine:
            found.setdefault(one.key, one)
        if tries > TRIES:
            what = f"only about {len(found)} different {split} problems exist for `{kind}`, and {size} are asked for"
            raise ParamsError(what=what, where=PARAMS_FILE, fix="Raise largest or most, or ask for fewer")
    return list(found.values())


def _task(draw: Draw) -> Task:
    """A task whose answer is the last number, so that a model that was never trained on the form is judged fairly."""
    generator = Generator(ArithmeticParams, ("chat", "prompts"), partial(_tables, draw))
    return Task(generator, reward_options={"correct": {"find": "last"}, "format": {"after": MARK}})


TASKS = {
    "sums": _task(draw_sum),
    "stories": _task(draw_story),
    "products": _task(draw_product),
    "sequences": _task(draw_sequence),
}
