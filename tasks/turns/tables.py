"""The tables of tasks with several turns: transcripts to pretrain on, demonstrations, and prompts."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl
from pydantic import Field

from posttrain.data.columns import Kind, Split, canonical, from_rows
from posttrain.measure.record import note
from posttrain.rollout import Message

from ..counts import Counts
from ..drawing import TRIES, problem_split, too_few

PAGE: Final = 3
"""Transcripts of a document."""


class TurnsParams(Counts):
    """The numbers of rows."""

    seed: int = Field(0, ge=0, description="draws the problems")
    documents: int = Field(8_000, ge=20, le=10_000_000, description="training rows of `corpus`")
    heldout_documents: int = Field(200, ge=1, le=100_000, description="held-out rows of `corpus`")


@dataclass(frozen=True)
class Problem:
    """A question to the policy."""

    key: str
    question: str
    answer: str

    @property
    def prompt(self) -> Message:
        """The user's turn."""
        return {"role": "user", "content": self.question}


@dataclass(frozen=True)
class Game:
    """Functions that draw problems and continue them as demonstrations and transcripts."""

    draw: Callable[[random.Random], Problem]
    demonstrate: Callable[[random.Random, Problem], Sequence[Message]]
    transcribe: Callable[[random.Random, Problem], Sequence[Message]]

    def tables(self, params: TurnsParams) -> dict[Kind, pl.DataFrame]:
        """Return the tables `corpus`, `chat` and `prompts`. Each part has its own random stream."""
        note(seed=params.seed)
        sizes = params.sizes()
        documents: dict[Split, int] = {"train": params.documents, "heldout": params.heldout_documents}
        return {
            "corpus": from_rows(_rows(params.seed, "corpus", documents, self._document), "corpus"),
            "chat": from_rows(_rows(params.seed, "chat", sizes["chat"], self._demonstration), "chat"),
            "prompts": from_rows(_rows(params.seed, "prompts", sizes["prompts"], self._prompt), "prompts"),
        }

    def _document(self, rng: random.Random, split: Split) -> dict[str, Any]:
        """Return transcripts without roles. Held-out documents contain training problems too."""
        problems = [self._problem(rng, "train") for _ in range(PAGE)]
        turns = [turn for problem in problems for turn in (problem.prompt, *self.transcribe(rng, problem))]
        return {"split": split, "text": "\n".join(turn["content"] for turn in turns)}

    def _demonstration(self, rng: random.Random, split: Split) -> dict[str, Any]:
        problem = self._problem(rng, split)
        return {"split": split, "problem": problem.key, "messages": [problem.prompt, *self.demonstrate(rng, problem)]}

    def _prompt(self, rng: random.Random, split: Split) -> dict[str, Any]:
        problem = self._problem(rng, split)
        given = {"prompt": [problem.prompt], "answer": problem.answer, "info": "{}", "task": ""}
        return {"split": split, "problem": problem.key, **given}

    def _problem(self, rng: random.Random, split: Split) -> Problem:
        for _ in range(TRIES):
            problem = self.draw(rng)
            if problem_split(problem.key) == split:
                return problem
        raise too_few(f"no {split} problem was found in {TRIES:,} draws")


Row = Callable[[random.Random, Split], dict[str, Any]]


def _rows(seed: int, kind: Kind, sizes: dict[Split, int], row: Row) -> Iterator[dict[str, Any]]:
    """Yield different rows of each split."""
    seen: set[str] = set()
    for split, size in sizes.items():
        rng, before = random.Random(f"{seed}:{kind}:{split}"), len(seen)
        while len(seen) < before + size:
            draws = (row(rng, split) for _ in range(TRIES))
            drawn = next((candidate for candidate in draws if canonical({**candidate, "split": ""}) not in seen), None)
            if drawn is None:
                what = f"only about {len(seen) - before:,} different {split} rows exist for `{kind}`, not {size:,}"
                raise too_few(what)
            seen.add(canonical({**drawn, "split": ""}))
            yield drawn
