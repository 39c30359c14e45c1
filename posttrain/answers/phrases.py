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
_PARTS = {
    name if number == 1 else f"{name}s": place
    for place, name in enumerate(re.split(r"\W", "third fourth fifth sixth seventh eighth ninth tenth"), 3)
    for number in (1, 2)
} | {"half": 2, "halves": 2, "quarter": 4, "quarters": 4}
"""The last words of fractions: two thirds."""
_MONTHS = re.split(r"\W", "jan feb mar apr may jun jul aug sep oct nov dec")
_MONTH = (
    r"(?P<month>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|"
    r"oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\.?"
)
_DATES = [
    re.compile(rf"{_MONTH} (?P<day>\d{{1,2}})(?:st|nd|rd|th)?(?:,? (?P<year>\d{{4}}))?"),
    re.compile(rf"(?:the )?(?P<day>\d{{1,2}})(?:st|nd|rd|th)?(?: of)? {_MONTH}(?:,? (?P<year>\d{{4}}))?"),
]
_THOUSANDS = {"thousand": 1000, "million": 10**6, "billion": 10**9}
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
    """Return a short text of only words, or a time of day; None for any other text."""
    small = re.sub(r"\Athere (?:is|are) |\A(?:the )?set of |\A(?:the|an?) ", "", words.lower())
    small = re.sub(r"\bsolutions\Z", "solution", small)
    if small in _PHRASES or f"all {small}" in _PHRASES:
        return _PHRASES.get(small) or _PHRASES[f"all {small}"]
    if clock := _CLOCK.fullmatch(words):
        return Words(f"{int(clock[1]) % 12 + 12 * (clock[3] in 'pP')}:{clock[2] or '00'}")
    if date := next((match for form in _DATES if (match := form.fullmatch(words.lower()))), None):
        return Words(f"{int(date['day'])} {_MONTHS.index(date['month'][:3]) + 1} {date['year'] or ''}".strip())
    if divided := _REMAINDER.fullmatch(words):
        return Words(f"{divided[1]} remainder {divided[2]}")
    parts = small.split()
    if not re.fullmatch(r"[^\W\d_](?:[^\W\d_]|[' -]){1,60}", words) or len(parts) > 6:
        return None
    if words.isascii() and not re.search(r"[A-Za-z]{3}", words) and parts != ["no"]:
        return None
    if len(parts) == 1 and parts[0] in ("infinity", "sqrt", "theta", "alpha", "inf", "lambda", "beta", "gamma"):
        return None
    if any(part in HEDGES for part in parts) and " ".join(parts) not in _ALONE:
        return None
    return Words(" ".join(parts))


def in_digits(words: str) -> str | None:
    """Return a text whose first words are a number, with the number in digits: `12 apples`; None for any other text."""
    parts = words.lower().replace("-", " ").split()
    if len(parts) > 1 and (bottom := _PARTS.get(parts[-1])) and (top := _counted(parts[:-1])) is not None:
        return f"{top}/{bottom}"
    for end in range(min(len(parts), 12), max(len(parts) - 4, 0), -1):
        if (number := _counted(parts[:end])) is not None:
            return " ".join([str(number), *parts[end:]])
    return None


def _counted(words: list[str]) -> int | None:
    """Return the number that words express: `one hundred and thirty four`; None for others."""
    total = part = 0
    for place, word in enumerate(words):
        if word in _SMALL and part % (100 if _SMALL.index(word) > 9 else 10) == 0 and word != "zero":
            part += _SMALL.index(word)
        elif word in _TENS and part % 100 == 0:
            part += 10 * (_TENS.index(word) + 2)
        elif word == "hundred" and 0 < part < 100:
            part *= 100
        elif word in _THOUSANDS and 0 < part < 1000 and total % _THOUSANDS[word] == 0:
            total, part = total + part * _THOUSANDS[word], 0
        elif not (word == "and" and 0 < place < len(words) - 1 and words[place - 1][-3:] in ("red", "and", "ion")):
            return 0 if words == ["zero"] else None
    return total + part


def described(words: str, value: Callable[[str], Node]) -> str | Reals | None:
    """Return the numbers that a text describes, as an inequality or as intervals; None if it describes no numbers."""
    small = words.lower()
    if bounded := _BOUNDED.fullmatch(small):
        sign = _SIGNS.get(bounded["relation"])
        return f"x {sign or chr(92) + 'ne'} {bounded['value']}"
    between = _BETWEEN.fullmatch(small)
    if not between or not (between["ends"] or between["strictly"]) or (between["ends"] and between["strictly"]):
        return None
    closed = between["ends"] == "inclusive"
    return Reals((Span(value(between["low"]), closed, value(between["high"]), closed),))
