"""The problems of the miniature task: two small steps of arithmetic with numbers that a tiny model can learn."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

ProblemKind = Literal["a+b+c", "a+b-c", "a-b+c", "a-b-c", "k*m+c", "k*m-c", "more", "fewer"]
PROBLEM_KINDS: Final[tuple[ProblemKind, ...]] = get_args(ProblemKind)
KIND_SHARES: Final[dict[ProblemKind, float]] = {
    **dict.fromkeys(("a+b+c", "a+b-c", "a-b+c", "a-b-c"), 0.15),
    **dict.fromkeys(("k*m+c", "k*m-c"), 0.12),
    **dict.fromkeys(("more", "fewer"), 0.08),
}
SMALLEST_OPERAND: Final = 2


@dataclass(frozen=True)
class Step:
    """One equation `left operator right = result`."""

    left: int
    operator: str
    right: int

    @property
    def result(self) -> int:
        if self.operator == "*":
            return self.left * self.right
        return self.left + self.right if self.operator == "+" else self.left - self.right

    def __str__(self) -> str:
        return f"{self.left}{self.operator}{self.right}={self.result}"


@dataclass(frozen=True)
class Problem:
    """A kind and its numbers.

    In 'more' and 'fewer' the first person has a, the second has a+b or a-b, and both are added.
    """

    kind: ProblemKind
    numbers: tuple[int, ...]

    @property
    def key(self) -> str:
        return f"{self.kind}:{','.join(str(number) for number in self.numbers)}"

    @property
    def steps(self) -> tuple[Step, Step]:
        a, b = self.numbers[:2]
        if self.kind in ("more", "fewer"):
            first = Step(a, "+" if self.kind == "more" else "-", b)
            return first, Step(a, "+", first.result)
        first = Step(a, self.kind[1], b)
        return first, Step(first.result, self.kind[3], self.numbers[2])

    @property
    def answer(self) -> int:
        return self.steps[1].result


def all_problems(operand_max: int, result_max: int) -> Iterator[Problem]:
    """Yield every problem whose operands are in 2..operand_max and whose results are all in 0..result_max."""
    operands = range(SMALLEST_OPERAND, operand_max + 1)
    for kind in PROBLEM_KINDS:
        for a in operands:
            for b in operands:
                if kind in ("more", "fewer"):
                    candidates = [Problem(kind, (a, b))]
                else:
                    candidates = [Problem(kind, (a, b, c)) for c in operands]
                yield from (
                    candidate
                    for candidate in candidates
                    if all(0 <= step.result <= result_max for step in candidate.steps)
                )


def by_kind(problems: Iterable[Problem]) -> dict[ProblemKind, list[Problem]]:
    """Return the problems in lists, one per kind that occurs."""
    lists: dict[ProblemKind, list[Problem]] = {}
    for problem in problems:
        lists.setdefault(problem.kind, []).append(problem)
    return lists


def draw_distinct(rng: random.Random, pool: Mapping[ProblemKind, Sequence[Problem]], count: int) -> list[Problem]:
    """Return `count` different problems, with kinds drawn by `KIND_SHARES` until a kind is used up."""
    left = {kind: rng.sample(problems, len(problems)) for kind, problems in pool.items()}
    drawn: list[Problem] = []
    while len(drawn) < count:
        kinds = [kind for kind, problems in left.items() if problems]
        drawn.append(left[draw_kind(rng, kinds)].pop())
    return drawn


def draw_kind(rng: random.Random, kinds: Sequence[ProblemKind]) -> ProblemKind:
    """Return one of `kinds` by `KIND_SHARES`."""
    return rng.choices(kinds, weights=[KIND_SHARES[kind] for kind in kinds])[0]
