"""Answers in words: true, no solution, the empty set, all real numbers greater than 3, half past three."""

from __future__ import annotations

import re
from collections.abc import Callable

from posttrain.answers.nodes import (
    INFINITY,
    MINUS_INFINITY,
    WHOLE_LINE,
    Answer,
    Items,
    Node,
    Num,
    Quantity,
    Reals,
    Span,
    Words,
)
from posttrain.answers.token_runs import HEDGES

ZERO = Num.of(0)
_PHRASES: dict[str, Answer] = {
    "empty set": Items("set", ()),
    "no solution": Items("set", ()),
    "no real solution": Items("set", ()),
    "all real numbers": WHOLE_LINE,
    "all reals": WHOLE_LINE,
    "all positive real numbers": Reals((Span(ZERO, False, INFINITY, False),)),
    "all positive reals": Reals((Span(ZERO, False, INFINITY, False),)),
    "all negative real numbers": Reals((Span(MINUS_INFINITY, False, ZERO, False),)),
    "all nonnegative real numbers": Reals((Span(ZERO, True, INFINITY, False),)),
    "all non-negative real numbers": Reals((Span(ZERO, True, INFINITY, False),)),
}
_ALONE = frozenset({"no solution", "no", "not possible", "no real solution"})
_SMALL = re.split(
    r"\W",
    "zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen|seventeen|"
    "eighteen|nineteen",
)
_TENS = re.split(r"\W", "twenty thirty forty fifty sixty seventy eighty ninety")
_NUMBERS = (
    r"(?:the set of )?(?:all )?(?:real )?(?:numbers|reals|values|[a-z])(?: of)?(?: [a-z])?(?: that are|"
    r" such that [a-z] is| is)?"
)
_BOUNDED = re.compile(
    rf"{_NUMBERS} (?P<relation>greater than or equal to|less than or equal to|greater than|less than|at least|at most|"
    r"except|other than|not equal to) (?P<value>.+)"
)
_BETWEEN = re.compile(
    rf"{_NUMBERS} (?P<strictly>strictly )?between (?P<low>\S+) and (?P<high>\S+?),? ?(?P<ends>inclusive|exclusive)?"
)
_SIGNS = {
    "greater than or equal to": r"\ge",
    "at least": r"\ge",
    "less than or equal to": r"\le",
    "at most": r"\le",
    "greater than": ">",
    "less than": "<",
}
_CLOCK = re.compile(r"(\d{1,2})(?::(\d\d))? ?([ap])\.? ?m\.?", re.IGNORECASE)
_REMAINDER = re.compile(r"(-?\d+),? ?(?:with |and )?(?:a )?(?:remainder|rem\.?|r\.?)(?: of)? ?(\d+)", re.IGNORECASE)


def phrase(words: str) -> Answer | None:
    """Return a short text of words only, or a time of day; None: it is neither."""
    small = re.sub(r"\Athere (?:is|are) |\A(?:the )?set of |\A(?:the|an?) ", "", words.lower())
    small = re.sub(r"\bsolutions\Z", "solution", small)
    if small in _PHRASES or f"all {small}" in _PHRASES:
        return _PHRASES.get(small) or _PHRASES[f"all {small}"]
    if clock := _CLOCK.fullmatch(words):
        return Words(f"{int(clock[1]) % 12 + 12 * (clock[3] in 'pP')}:{clock[2] or '00'}")
    if divided := _REMAINDER.fullmatch(words):
        return Words(f"{divided[1]} remainder {divided[2]}")
    parts = small.split()
    if (number := _counted(small)) is not None:
        return Quantity(Num.of(number))
    if not re.fullmatch(r"[^\W\d_](?:[^\W\d_]|[' -]){1,60}", words) or len(parts) > 6:
        return None
    if words.isascii() and not re.search(r"[A-Za-z]{3}", words) and parts != ["no"]:
        return None
    if len(parts) == 1 and parts[0] in ("infinity", "sqrt", "theta", "alpha", "inf", "lambda", "beta", "gamma"):
        return None
    if any(part in HEDGES for part in parts) and " ".join(parts) not in _ALONE:
        return None
    return Words(" ".join(parts))


def _counted(words: str) -> int | None:
    """Return the number that one or two words are, below a hundred: seventy-two."""
    tens, _, ones = words.replace("-", " ").partition(" ")
    if words in _SMALL:
        return _SMALL.index(words)
    if tens not in _TENS or (ones and ones not in _SMALL[1:10]):
        return None
    return 10 * (_TENS.index(tens) + 2) + (_SMALL.index(ones) if ones else 0)


def described(words: str, value: Callable[[str], Node]) -> str | Reals | None:
    """Return the numbers that a text describes, as an inequality or as intervals; None: it describes none."""
    small = words.lower()
    if bounded := _BOUNDED.fullmatch(small):
        sign = _SIGNS.get(bounded["relation"])
        return f"x {sign or chr(92) + 'ne'} {bounded['value']}"
    between = _BETWEEN.fullmatch(small)
    if not between or not (between["ends"] or between["strictly"]) or (between["ends"] and between["strictly"]):
        return None
    closed = between["ends"] == "inclusive"
    return Reals((Span(value(between["low"]), closed, value(between["high"]), closed),))
