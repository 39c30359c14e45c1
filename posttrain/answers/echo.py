"""Detect answers that repeat the question or answer another one: `17^2` to "What is 17^2?", m for cm."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from fractions import Fraction
from typing import Any

from posttrain.answers.equal import is_scientific, same_answer
from posttrain.answers.nodes import Call, Named, Num, Quantity, Unit, Unreadable, walk
from posttrain.answers.numbers import exact
from posttrain.answers.read import read
from posttrain.answers.tokens import FULL_WIDTH, tokens
from posttrain.answers.units import is_money, table, unit_of

_WRAPS = r"text\w*|math\w+|mbox|boxed|displaystyle|operatorname|left|right|big\w*|[,;:! ]|quad|qquad|limits"
_LAYOUT = re.compile(rf"\\(?:{_WRAPS})(?![a-z])|\\(?=[,;:!])", re.IGNORECASE)
_FRACTION = re.compile(r"\\[dtc]?frac\s*(?:\{([^{}]*)\}|(\w))\s*(?:\{([^{}]*)\}|(\w))")
_SIGNS = {"\\times": "*", "\\cdot": "*", "×": "*", "·": "*", "⋅": "*", "**": "^", "\\dbinom": "binom",
          "\\tbinom": "binom", "\\div": "/", "÷": "/", "−": "-", "π": "pi"}  # fmt: skip
_RAISED = str.maketrans({digit: f"^{place}" for place, digit in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")})
_TOKEN = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?|\.\d+|[a-z]+|[^\s(){}\[\]$\\'\"_*]")
_NUMBER = re.compile(r"[\d,]*\.?\d+")
_OPERATORS = frozenset("+-/^!=<>|√")
_ASKED = re.compile(r"\b(?:how many|in) ((?:[a-z°$/]+\s?){1,4})", re.IGNORECASE)
_FORMULA = re.compile(r"\$([^$]{1,300})\$|\\\((.{1,300}?)\\\)")
LONGEST = 8000
"""The number of characters at the end of a question that are examined."""


def why_refused(question: str, answer: str, gold: str) -> str | None:
    """Return why an answer equal to the gold answer does not answer the question; None if it does."""
    question = question[-LONGEST:].translate(FULL_WIDTH)
    if is_echo(question, answer, gold):
        return "it repeats an expression of the prompt"
    try:
        found, expected = read(re.sub(r"\\pm(?![a-z])|±", "-", answer)), read(gold)
    except Unreadable:
        return None
    numbers = {Fraction(number.replace(",", "")) for number in re.findall(r"\d[\d,]*\d|\d", question)}
    if not any(_undone(expected)) and any(max(parts, key=abs) in numbers for parts in _undone(found)):
        return "it leaves an operation on the prompt's numbers to be done"
    if isinstance(found, Named) and not isinstance(expected, Named) and len(found.name) == 1 and found.name.islower():
        names = {name for formula in _FORMULA.finditer(question) for name in _variables(formula[1] or formula[2])}
        if names and found.name not in names:
            return "it is the value of another variable"
    bare = isinstance(expected, Quantity) and expected.unit is None
    return (
        "it has another unit than the prompt asks for"
        if bare and _has_other_unit(question, answer, found, gold)
        else None
    )


def is_echo(question: str, answer: str, gold: str) -> bool:
    """Return whether the answer occurs in the question in another spelling than the gold answer's.

    A number that is the gold answer's own may occur there: `5.00` for 5, or `12 apples` for 12.
    """
    given, expected = _spelled(answer), _spelled(gold)
    if "=" in given and "=" not in expected and "," not in given:
        sides = " ".join(given).split(" = ")  # of x = 2 and 2 = x the value
        given = sides[0 if re.fullmatch(r"[a-z]", sides[-1]) else -1].split()
    if not given or sorted(given) == sorted(expected):
        return False
    if _amount(given) is not None and _amount(given) == _amount(expected):
        return False
    asked, many = _spelled(question), len(given)
    same_parts, wanted = Counter(asked[:many]), Counter(given)
    for place in range(len(asked) - many + 1):
        if (many > 2 and same_parts == wanted) or asked[place : place + many] == given:
            return True
        same_parts[asked[place]] -= 1
        same_parts.update(asked[place + many : place + many + 1])
    return False


def _undone(answer: Any) -> Iterator[set[Fraction]]:
    """Yield the numbers of each power, root, factorial or division that could be computed."""
    if isinstance(answer, Call) and answer.name != "neg" and not is_scientific(answer):
        values = [exact(arg) for arg in answer.args]
        whole = answer.name != "div" or (value := exact(answer)) is None or value.denominator == 1
        if whole and None not in values:
            yield {part.value for part in walk(answer) if isinstance(part, Num)}
    if isinstance(answer, tuple):
        for part in answer:
            yield from _undone(part)
    elif is_dataclass(answer) and not isinstance(answer, Unit):
        for field in fields(answer):
            yield from _undone(getattr(answer, field.name))


def _variables(formula: str) -> list[str]:
    return re.findall(r"(?<![A-Za-z\\])[a-z](?![A-Za-z])", formula)


def _has_other_unit(question: str, answer: str, found: Any, gold: str) -> bool:
    """Return whether a bare gold answer has the requested unit, and the answer another unit of the same kind."""
    if not isinstance(found, Quantity) or found.unit is None:
        return False
    for asked in _ASKED.finditer(question):
        words = asked[1].split()
        for many in range(len(words), 0, -1):
            unit = _unit(" ".join(words[:many]))
            if unit is None:
                continue
            if unit != found.unit and is_money(unit) and is_money(found.unit):
                return True
            if unit.dimensions == found.unit.dimensions and unit != found.unit:
                return _differs(f"{gold} {' '.join(words[:many])}", answer)
            break
    return False


def _differs(gold: str, answer: str) -> bool:
    try:
        return not same_answer(gold, answer)
    except Unreadable:
        return True


def _unit(words: str) -> Unit | None:
    """Return the unit that words name; None if the table does not have it."""
    try:
        unit = unit_of(tokens(f"1 {words}")[1:])[1]
    except Unreadable:
        return None
    return unit if unit is None or unit in table().values() or len(unit.dimensions) > 1 else None


def _spelled(text: str) -> list[str]:
    """Return the parts of a text in one spelling, without brackets, spaces and fonts."""
    text = _LAYOUT.sub(" ", text.translate(_RAISED))
    for sign, other in _SIGNS.items():
        text = text.replace(sign, other)
    for _ in range(3):
        text = _FRACTION.sub(r"\1\2/\3\4", text)
    parts = [part for part in _TOKEN.findall(text.lower().rstrip(". \n")) if part != "+"]
    return [_unit_name(part) if place and parts[place - 1][-1:].isdigit() else part for place, part in enumerate(parts)]


def _unit_name(word: str) -> str:
    """Return one name for all spellings of a unit after a number."""
    unit = table().get(word) or (table().get(word.removesuffix("s")) if len(word) > 3 else None)
    return word if unit is None else str(unit.dimensions) + str(unit.factor)


def _amount(parts: list[str]) -> float | None:
    """Return the number of parts that are a number, optionally followed by words; None for others."""
    numbers = [part for part in parts if _NUMBER.fullmatch(part)]
    if len(numbers) != 1 or not _OPERATORS.isdisjoint(parts[1:]):
        return None
    return float(numbers[0].replace(",", "")) * (-1 if parts[0] == "-" else 1)
