"""Arithmetic in plain English: sums, stories, products and sequences, drawn from a seed and with their working."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

NAMES: Final = ("Tom", "Anna", "Ben", "Maria", "Sam", "Lucy", "Omar", "Nina", "Leo", "Ida")
ITEMS: Final = ("apples", "books", "coins", "stamps", "cards", "shells", "pens", "marbles", "eggs", "cookies")
MORE: Final = ("finds {n} more", "buys {n} more", "gets {n} more from a friend", "is given {n} more")
FEWER: Final = ("gives away {n} of them", "loses {n} of them", "sells {n} of them", "hands {n} of them to a friend")


@dataclass(frozen=True)
class Range:
    """The size of a problem."""

    fewest: int
    most: int
    """How many numbers it has."""
    largest: int


@dataclass(frozen=True)
class Problem:
    """A question, the working as equations, and the answer; problems with the same key are the same."""

    key: str
    question: str
    working: tuple[str, ...]
    answer: int


Draw = Callable[[random.Random, Range], Problem]


def draw_sum(rng: random.Random, size: Range) -> Problem:
    """Return a sum of numbers added and subtracted, with no result below 0."""
    terms, working = _chain(rng, size)
    written = str(terms[0]) + "".join(f" {'+' if term >= 0 else '-'} {abs(term)}" for term in terms[1:])
    asked = rng.choice(("What is {}?", "Calculate {}.", "Work out {}.", "How much is {}?"))
    return Problem(f"sum:{written}", asked.format(written), working, sum(terms))


def draw_story(rng: random.Random, size: Range) -> Problem:
    """Return a story: somebody has some things, and gets more or gives some away."""
    terms, working = _chain(rng, size)
    name, items = rng.choice(NAMES), rng.choice(ITEMS)
    changes = [rng.choice(MORE if term >= 0 else FEWER).format(n=abs(term)) for term in terms[1:]]
    parts = [f"{name} has {terms[0]} {items}.", *(f"{name} {change}." for change in changes)]
    question = f"{' '.join(parts)} How many {items} does {name} have now?"
    key = f"story:{name},{items}:{','.join(map(str, terms))}"
    return Problem(key, question, working, sum(terms))


def draw_product(rng: random.Random, size: Range) -> Problem:
    """Return a product of two numbers."""
    left, right = (rng.randint(2, size.largest) for _ in range(2))
    working = (f"{left} * {right} = {left * right}",)
    asked = rng.choice(("What is {} times {}?", "Multiply {} by {}.", "What is the product of {} and {}?"))
    return Problem(f"product:{left},{right}", asked.format(left, right), working, left * right)


def draw_sequence(rng: random.Random, size: Range) -> Problem:
    """Return the next number of a sequence with a constant step."""
    count = max(rng.randint(size.fewest, size.most), 3)
    step = rng.randint(1, max(size.largest // (count + 1), 1))
    first = rng.randint(0, max(size.largest - step * count, 0))
    shown = [first + step * place for place in range(count + 1)]
    if rng.random() < 0.5:
        shown.reverse()
    *shown, answer = shown
    sign = "+" if answer > shown[-1] else "-"
    asked = rng.choice(("Which number comes next: {}, ...?", "What is the next number in the sequence {}?"))
    written = ", ".join(map(str, shown))
    return Problem(f"sequence:{written}", asked.format(written), (f"{shown[-1]} {sign} {step} = {answer}",), answer)


def _chain(rng: random.Random, size: Range) -> tuple[list[int], tuple[str, ...]]:
    """Return signed numbers whose running totals are in 0..largest, and the equation of each step."""
    terms, working = [rng.randint(1, size.largest)], []
    for _ in range(rng.randint(size.fewest, size.most) - 1):
        total = sum(terms)
        up = rng.random() < (size.largest - total) / size.largest if 0 < total < size.largest else total == 0
        number = rng.randint(1, size.largest - total if up else total)
        working.append(f"{total} {'+' if up else '-'} {number} = {total + number if up else total - number}")
        terms.append(number if up else -number)
    return terms, tuple(working)
