"""Small functions on numbers, lists and strings: a description, a solution, and tests."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Literal, get_args

ProblemKind = Literal["number", "list", "text"]
KINDS: Final[tuple[ProblemKind, ...]] = get_args(ProblemKind)
WORDS: Final = ("ab", "cat", "sun", "tree")
CASES: Final = 4
"""Tests of a problem."""


@dataclass(frozen=True)
class Step:
    """One step: in words, as a line of Python, and as a function of a value and the step's number or word."""

    words: str
    line: str
    does: Callable[[Any, Any], Any]
    argument: int | str | None


@dataclass(frozen=True)
class Problem:
    """A function to write. Problems with the same key are the same."""

    kind: ProblemKind
    steps: tuple[Step, ...]

    @property
    def key(self) -> str:
        """The kind and the steps."""
        return f"{self.kind}:{'; '.join(step.words for step in self.steps)}"

    @property
    def question(self) -> str:
        """The problem in words."""
        return f"{self.kind} x: {'; '.join(step.words for step in self.steps)}"

    @property
    def program(self) -> str:
        """A correct program."""
        return "\n".join(["def f(x):", *(f" {step.line}" for step in self.steps), " return x"])

    def tests(self) -> str:
        """Return assertions. The problem's key decides their inputs."""
        rng = random.Random(self.key)
        return "\n".join(f"assert f({given!r}) == {self(given)!r}" for given in _inputs(rng, self.kind))

    def __call__(self, value: Any) -> Any:
        """Return what a right program returns."""
        for step in self.steps:
            value = step.does(value, step.argument)
        return value


Form = tuple[str, str, Callable[[Any, Any], Any]]
FORMS: Final[dict[ProblemKind, tuple[Form, ...]]] = {
    "number": (
        ("square", "x = x * x", lambda x, _: x * x),
        ("negate", "x = -x", lambda x, _: -x),
        ("add {n}", "x = x + {n}", lambda x, n: x + n),
        ("subtract {n}", "x = x - {n}", lambda x, n: x - n),
        ("times {n}", "x = x * {n}", lambda x, n: x * n),
        ("modulo {n}", "x = x % {n}", lambda x, n: x % n),
    ),
    "list": (
        ("sort", "x = sorted(x)", lambda x, _: sorted(x)),
        ("reverse", "x = x[::-1]", lambda x, _: x[::-1]),
        ("drop the first", "x = x[1:]", lambda x, _: x[1:]),
        ("keep the even", "x = [y for y in x if y % 2 == 0]", lambda x, _: [y for y in x if y % 2 == 0]),
        ("keep above {n}", "x = [y for y in x if y > {n}]", lambda x, n: [y for y in x if y > n]),
        ("add {n}", "x = [y + {n} for y in x]", lambda x, n: [y + n for y in x]),
        ("times {n}", "x = [y * {n} for y in x]", lambda x, n: [y * n for y in x]),
    ),
    "text": (
        ("upper", "x = x.upper()", lambda x, _: x.upper()),
        ("reverse", "x = x[::-1]", lambda x, _: x[::-1]),
        ("drop the first", "x = x[1:]", lambda x, _: x[1:]),
        ("repeat {n}", "x = x * {n}", lambda x, n: x * n),
        ("end with {word}", "x = x + '{word}'", lambda x, word: x + word),
        ("begin with {word}", "x = '{word}' + x", lambda x, word: word + x),
    ),
}
"""The steps on a value of a kind: in words, as Python, and what they compute."""


@cache
def steps(kind: ProblemKind, largest: int) -> list[Step]:
    """Return all possible steps on a value of a kind, with numbers from 2 to `largest`."""
    return [
        Step(words.format(n=number, word=number), line.format(n=number, word=number), does, number)
        for words, line, does in FORMS[kind]
        for number in _arguments(words, largest)
    ]


def _arguments(words: str, largest: int) -> Sequence[int | str | None]:
    if "{n}" in words:
        return range(2, largest + 1)
    return WORDS if "{word}" in words else (None,)


def draw_problem(rng: random.Random, fewest: int, most: int, largest: int) -> Problem:
    """Return a problem of any kind, without a step twice in a row."""
    kind = rng.choice(KINDS)
    possible = steps(kind, largest)
    chosen: list[Step] = []
    for _ in range(rng.randint(fewest, most)):
        chosen.append(rng.choice([step for step in possible if not chosen or step.words != chosen[-1].words]))
    return Problem(kind, tuple(chosen))


def flawed(rng: random.Random, problem: Problem, largest: int) -> Problem:
    """Return the problem with one step replaced, like a careless programmer's mistake."""
    place = rng.randrange(len(problem.steps))
    others = [step for step in steps(problem.kind, largest) if step.words != problem.steps[place].words]
    return Problem(problem.kind, (*problem.steps[:place], rng.choice(others), *problem.steps[place + 1 :]))


def _inputs(rng: random.Random, kind: ProblemKind) -> list[Any]:
    if kind == "number":
        return rng.sample(range(-9, 20), CASES)
    if kind == "list":
        return [[rng.randint(-5, 15) for _ in range(rng.randint(3, 6))] for _ in range(CASES)]
    return ["".join(rng.choices("abcdefg", k=rng.randint(2, 5))) for _ in range(CASES)]
