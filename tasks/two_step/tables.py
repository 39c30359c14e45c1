"""The miniature task: seeded two-step word problems, with a corpus for pretraining, demonstrations and prompts."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Final

import polars as pl
from pydantic import Field, model_validator

from posttrain.data.columns import Kind, Split, from_rows
from posttrain.data.splits import split_of
from posttrain.errors import ParamsError
from posttrain.settings.host import HOST
from posttrain.settings.params import Params

from .problems import (
    SMALLEST_OPERAND,
    Problem,
    ProblemKind,
    Step,
    all_problems,
    by_kind,
    draw_distinct,
    draw_kind,
)
from .text import (
    chained_document,
    demonstration,
    headed,
    narrated_document,
    question,
    terse_document,
    worked_document,
)

_TRIES: Final = 200
"""Consecutive draws that may repeat an earlier document before the generator gives up."""


class TwoStepParams(Params):
    """Sizes and mixture of the miniature task."""

    seed: int = Field(
        default=0, ge=0, description="Seed of the corpus, the demonstrations, and the train and heldout prompts"
    )
    test_seed: int = Field(default=1_000_003, ge=0, description="Seed of the test prompts only")
    n_corpus: int = Field(default=42_000, ge=20, le=10_000_000, description="Pretraining documents")
    n_corpus_heldout: int = Field(
        default=500, ge=1, le=100_000, description="Documents that measure the base's held-out loss"
    )
    n_sft: int = Field(default=1_500, ge=1, description="Demonstrations for SFT")
    n_sft_heldout: int = Field(default=200, ge=1, description="Demonstrations that measure SFT's held-out loss")
    n_rl: int = Field(default=2_000, ge=1, description="Train prompts, for pairs and for online training")
    n_heldout: int = Field(default=300, ge=1, description="Held-out prompts, for decisions while tuning")
    n_test: int = Field(default=500, ge=1, description="Test prompts, only for the final results")
    operand_max: int = Field(default=20, ge=SMALLEST_OPERAND, le=99, description="The largest number in a problem")
    result_max: int = Field(default=30, ge=4, le=999, description="The largest result of a step")
    heldout_share: float = Field(default=0.1, gt=0, lt=0.5, description="Share of all problems that are heldout")
    test_share: float = Field(default=0.1, gt=0, lt=0.5, description="Share of all problems that are test")
    terse_share: float = Field(default=0.5, ge=0, le=1, description="Share of demonstrations that give only the answer")
    unmarked_share: float = Field(default=0.1, ge=0, le=1, description="Share of demonstrations without '####'")
    worked_share: float = Field(default=0.4, ge=0, le=1, description="Share of the corpus: problems with working")
    bare_share: float = Field(default=0.1, ge=0, le=1, description="Share of the corpus: problems with only the answer")
    chained_share: float = Field(default=0.25, ge=0, le=1, description="Share of the corpus: chained equations")
    heading_share: float = Field(
        default=0.05, gt=0, le=1, description="Share of documents under a '#### Exercise 11' heading"
    )
    chain_length: int = Field(default=14, ge=2, le=50, description="Maximum number of equations in a chain")

    @model_validator(mode="after")
    def _shares_fit(self) -> TwoStepParams:
        if self.heldout_share + self.test_share > 0.5:
            raise ValueError(
                "heldout_share + test_share must be at most 0.5, so that most problems are used for training"
            )
        if self.worked_share + self.bare_share + self.chained_share > 1:
            raise ValueError("worked_share + bare_share + chained_share must be at most 1; narration is the rest")
        return self


def two_step(params: TwoStepParams) -> dict[Kind, pl.DataFrame]:
    """Return the tables `corpus`, `chat` and `prompts` of the miniature."""
    task = _Task(params)
    chat, prompts = task.chat(), task.prompts()  # first, because they know at once whether the sizes can be had
    return {"corpus": task.corpus(), "chat": chat, "prompts": prompts}


class _Task:
    """One draw of the task. Every part has its own random stream, so that sizes do not disturb each other."""

    def __init__(self, params: TwoStepParams) -> None:
        self.params = params

    @cached_property
    def pools(self) -> Mapping[Split, Mapping[ProblemKind, list[Problem]]]:
        """Every problem by split and kind. A problem's split does not depend on the seed."""
        problems: dict[Split, list[Problem]] = {"train": [], "heldout": [], "test": []}
        for problem in all_problems(self.params.operand_max, self.params.result_max):
            problems[self._split(problem.key)].append(problem)
        return {split: by_kind(some) for split, some in problems.items()}

    def corpus(self) -> pl.DataFrame:
        seen: set[str] = set()
        rows: list[dict[str, Any]] = []
        sizes = {"train": self.params.n_corpus, "heldout": self.params.n_corpus_heldout}
        for split, size in sizes.items():
            texts = self._fresh(self._stream("corpus", split), size, seen)
            rows += [{"split": split, "text": text} for text in texts]
        return from_rows(rows, "corpus")

    def chat(self) -> pl.DataFrame:
        sizes: dict[Split, int] = {"train": self.params.n_sft, "heldout": self.params.n_sft_heldout}
        return from_rows((row for split, size in sizes.items() for row in self._demonstrations(split, size)), "chat")

    def prompts(self) -> pl.DataFrame:
        p = self.params
        sizes: dict[Split, tuple[int, str]] = {
            "train": (p.n_rl, "n_rl"),
            "heldout": (p.n_heldout, "n_heldout"),
            "test": (p.n_test, "n_test"),
        }
        return from_rows((row for split, size in sizes.items() for row in self._asked(split, *size)), "prompts")

    def _asked(self, split: Split, size: int, size_key: str) -> Iterator[dict[str, Any]]:
        rng = self._stream("prompts", split)
        for problem in self._draw(rng, split, size, size_key):
            prompt = [{"role": "user", "content": question(rng, problem)}]
            known = {"answer": str(problem.answer), "info": "{}", "task": ""}
            yield {"split": split, "problem": problem.key, "prompt": prompt, **known}

    def _demonstrations(self, split: Split, size: int) -> Iterator[dict[str, Any]]:
        rng, p = self._stream("chat", split), self.params
        for problem in self._draw(rng, split, size, "n_sft" if split == "train" else "n_sft_heldout"):
            asked = {"role": "user", "content": question(rng, problem)}
            answer = demonstration(rng, problem, terse_share=p.terse_share, unmarked_share=p.unmarked_share)
            yield {
                "split": split,
                "problem": problem.key,
                "messages": [asked, {"role": "assistant", "content": answer}],
            }

    def _document(self, rng: random.Random) -> str:
        p, u = self.params, rng.random()
        if u < p.chained_share:
            text = chained_document(self._chain(rng))
        elif u < p.chained_share + p.worked_share:
            text = worked_document(rng, self._any_train(rng))
        elif u < p.chained_share + p.worked_share + p.bare_share:
            text = terse_document(rng, self._any_train(rng))
        else:
            text = narrated_document(rng, rng.choice(self._any_train(rng).steps))
        return headed(rng, text, p.heading_share)

    def _any_train(self, rng: random.Random) -> Problem:
        pool = self.pools["train"]
        return rng.choice(pool[draw_kind(rng, list(pool))])

    def _chain(self, rng: random.Random) -> list[Step]:
        """Return equations. No two neighbours are the working of a problem outside the train split."""
        steps = list(self._any_train(rng).steps)
        for _ in range(rng.randint(0, self.params.chain_length - 2)):
            candidates = self._next_steps(steps[-1].result)
            rng.shuffle(candidates)
            step = next((candidate for candidate in candidates if self._is_train(steps[-1], candidate)), None)
            if step is None:
                break
            steps.append(step)
        return steps

    def _next_steps(self, left: int) -> list[Step]:
        rights = range(SMALLEST_OPERAND, self.params.operand_max + 1)
        steps = [Step(left, operator, right) for operator in "+-" for right in rights]
        return [step for step in steps if 0 <= step.result <= self.params.result_max]

    def _is_train(self, first: Step, second: Step) -> bool:
        shape, numbers = (
            ("k*m" if first.operator == "*" else f"a{first.operator}b"),
            (first.left, first.right, second.right),
        )
        return self._split(f"{shape}{second.operator}c:{','.join(str(n) for n in numbers)}") == "train"

    def _fresh(self, rng: random.Random, size: int, seen: set[str]) -> Iterator[str]:
        for _ in range(size):
            tries = (self._document(rng) for _ in range(_TRIES))
            text = next((text for text in tries if text not in seen), None)
            if text is None:
                raise _too_many(f"n_corpus: only about {len(seen):,} different documents exist", "n_corpus")
            seen.add(text)
            yield text

    def _draw(self, rng: random.Random, split: Split, size: int, size_key: str) -> list[Problem]:
        pool = self.pools[split]
        available = sum(len(problems) for problems in pool.values())
        if size > available:
            raise _too_many(f"{size_key} = {size:,}, but the {split} split has only {available:,} problems", size_key)
        return draw_distinct(rng, pool, size)

    def _stream(self, part: str, split: str) -> random.Random:
        seed = self.params.test_seed if split == "test" else self.params.seed
        return random.Random(f"{seed}:{part}:{split}")

    def _split(self, key: str) -> Split:
        return split_of(key, heldout_share=self.params.heldout_share, test_share=self.params.test_share)


def _too_many(what: str, size_key: str) -> ParamsError:
    fix = f"Lower {size_key}, or raise operand_max or result_max"
    return ParamsError(what=what, where=HOST.settings_file, fix=fix)
