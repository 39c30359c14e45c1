"""The kinds of answers: numbers and expressions, quantities, lists, intervals, equations and words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction


class Unreadable(ValueError):  # noqa: N818  not an error: the normal outcome for what is not understood
    """The text cannot be understood completely as an answer."""


@dataclass(frozen=True)
class Num:
    """An exact rational number."""

    value: Fraction

    @classmethod
    def of(cls, number: int) -> Num:
        """Return a whole number."""
        return cls(Fraction(number))


@dataclass(frozen=True)
class Const:
    """pi, e, i or infinity."""

    name: str


@dataclass(frozen=True)
class Var:
    """A variable."""

    name: str


@dataclass(frozen=True)
class Call:
    """An operation or a function: add, mul, div, pow, neg, root, sin, ..."""

    name: str
    args: tuple[Node, ...]


def word_set(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


Node = Num | Const | Var | Call
INFINITY = Const("infinity")
MINUS_INFINITY = Call("neg", (INFINITY,))
ONE = Num(Fraction(1))


def walk(node: Node) -> Iterator[Node]:
    """Yield the node and everything below it."""
    stack = [node]
    while stack:
        part = stack.pop()
        yield part
        if isinstance(part, Call):
            stack.extend(part.args)


def variables(node: Node) -> frozenset[str]:
    """Return the names of the variables in an expression."""
    return frozenset(part.name for part in walk(node) if isinstance(part, Var))


@dataclass(frozen=True)
class Unit:
    """A unit: exponents of base dimensions, and its size in base units."""

    dimensions: tuple[tuple[str, int], ...]
    factor: Node


@dataclass(frozen=True)
class Quantity:
    """An expression, optionally with a unit."""

    value: Node
    unit: Unit | None = None
    rounded: bool = False
    """True if a sign of approximation precedes it."""


@dataclass(frozen=True)
class Percent:
    """A number with a percent sign."""

    value: Node


@dataclass(frozen=True)
class Items:
    """Several answers: `set` without order; `(`, `[`, `<`, `:` for tuples, lists, vectors and ratios in order."""

    kind: str
    members: tuple[Answer, ...]


@dataclass(frozen=True)
class Span:
    """The numbers between two ends."""

    low: Node
    low_closed: bool
    high: Node
    high_closed: bool


@dataclass(frozen=True)
class Reals:
    """A union of intervals."""

    spans: tuple[Span, ...]
    variable: str | None = None
    """The variable, if the answer is an inequality."""


@dataclass(frozen=True)
class Matrix:
    """Rows of expressions."""

    rows: tuple[tuple[Node, ...], ...]


@dataclass(frozen=True)
class Equation:
    """Two equal sides; neither side is only a name."""

    left: Node
    right: Node


@dataclass(frozen=True)
class Named:
    """A named value: `x = 5`, `f(2) = 5`."""

    name: str
    value: Answer


@dataclass(frozen=True)
class Words:
    """A short text: true, no solution, Alice."""

    text: str


@dataclass(frozen=True)
class Based:
    """Digits in a base other than ten: 1011_2."""

    digits: str
    base: int


Answer = Quantity | Percent | Items | Reals | Matrix | Equation | Named | Words | Based
WHOLE_LINE = Reals((Span(MINUS_INFINITY, False, INFINITY, False),))
