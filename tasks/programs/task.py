"""The task `programs`: tiny functions to write in Python, judged by the reward `code`."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any, Final

import polars as pl
from pydantic import Field, model_validator

from posttrain.data.columns import Kind, Split, from_rows
from posttrain.measure.record import note
from posttrain.tasks.task import Generator, Task

from ..counts import Counts
from ..drawing import TRIES, draw_problems, problem_split, too_few
from .problems import Problem, draw_problem, flawed

PAGE: Final = 3
"""Problems of a document."""


class ProgramsParams(Counts):
    """Difficulty and number of the functions."""

    seed: int = Field(0, ge=0, description="draws the problems")
    fewest: int = Field(1, ge=1, le=9, description="minimum number of steps of a function")
    most: int = Field(2, ge=1, le=9, description="maximum number of steps of a function")
    largest: int = Field(9, ge=2, le=999, description="the largest number in a step")
    flawed_share: float = Field(0.5, ge=0, le=1, description="share of the demonstrations with one wrong step")
    documents: int = Field(8_000, ge=20, le=10_000_000, description="training rows of `corpus`")
    heldout_documents: int = Field(200, ge=1, le=100_000, description="held-out rows of `corpus`")

    @model_validator(mode="after")
    def _in_order(self) -> ProgramsParams:
        if self.fewest > self.most:
            raise ValueError(f"fewest ({self.fewest}) must be <= most ({self.most})")
        return self


def _tables(params: ProgramsParams) -> dict[Kind, pl.DataFrame]:
    """Return the tables `corpus`, `chat` and `prompts`. Each part has its own random stream."""
    note(seed=params.seed)
    sizes = params.sizes()
    chat = [
        {**_row(split, problem), "messages": [*_prompt(problem), {"role": "assistant", "content": answer}]}
        for split, size in sizes["chat"].items()
        for problem, answer in _demonstrations(params, split, size)
    ]
    prompts = [
        {
            **_row(split, problem),
            "prompt": _prompt(problem),
            "answer": "",
            "info": json.dumps(_info(problem)),
            "task": "",
        }
        for split, size in sizes["prompts"].items()
        for problem in _problems(params, "prompts", split, size)
    ]
    return {
        "corpus": from_rows(_documents(params), "corpus"),
        "chat": from_rows(chat, "chat"),
        "prompts": from_rows(prompts, "prompts"),
    }


def _row(split: Split, problem: Problem) -> dict[str, Any]:
    return {"split": split, "problem": problem.key}


def _prompt(problem: Problem) -> list[dict[str, str]]:
    return [{"role": "user", "content": problem.question}]


def _info(problem: Problem) -> dict[str, str]:
    return {"tests": problem.tests(), "entry_point": "f", "solution": problem.program}


def _documents(params: ProgramsParams) -> Iterator[dict[str, str]]:
    """Yield different pages of right programs for problems of the train split."""
    seen: set[str] = set()
    sizes: dict[Split, int] = {"train": params.documents, "heldout": params.heldout_documents}
    for split, size in sizes.items():
        rng = random.Random(f"{params.seed}:corpus:{split}")
        for _ in range(size):
            pages = (_page(rng, params) for _ in range(TRIES))
            page = next((page for page in pages if page not in seen), None)
            if page is None:
                raise too_few(f"only about {len(seen):,} different documents exist")
            seen.add(page)
            yield {"split": split, "text": page}


def _page(rng: random.Random, params: ProgramsParams) -> str:
    problems: list[Problem] = []
    while len(problems) < PAGE:
        drawn = _draw(rng, params)
        if problem_split(drawn.key) == "train":
            problems.append(drawn)
    return "\n".join(f"{problem.question}\n{problem.program}" for problem in problems)


def _demonstrations(params: ProgramsParams, split: Split, size: int) -> Iterator[tuple[Problem, str]]:
    """Yield problems with programs. Some programs are wrong."""
    rng = random.Random(f"{params.seed}:flawed:{split}")
    for problem in _problems(params, "chat", split, size):
        wrong = rng.random() < params.flawed_share
        yield problem, (flawed(rng, problem, params.largest) if wrong else problem).program


def _problems(params: ProgramsParams, kind: Kind, split: Split, size: int) -> list[Problem]:
    return draw_problems(lambda rng: _draw(rng, params), params.seed, kind, split, size)


def _draw(rng: random.Random, params: ProgramsParams) -> Problem:
    return draw_problem(rng, params.fewest, params.most, params.largest)


TASKS = {
    "programs": Task(
        Generator(ProgramsParams, ("corpus", "chat", "prompts"), _tables), reward_options={"code": {"take": "text"}}
    )
}
