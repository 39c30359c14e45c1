"""Check whether an answer equal to the gold answer is about something else: y instead of x, metres instead of cm."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from posttrain.answers.equal import same_answer
from posttrain.answers.finished import expressions
from posttrain.answers.following import are_known
from posttrain.answers.nodes import Named, Quantity, Unit, Unreadable
from posttrain.answers.numbers import same_number
from posttrain.answers.read import read
from posttrain.answers.tokens import FULL_WIDTH, tokens
from posttrain.answers.units import is_money, table, unit_of

_ASKED = re.compile(r"\b(?:how many|in|to|into) ((?:[a-z°$/]+\s?){1,4})", re.IGNORECASE)
_FORMULA = re.compile(r"\$([^$]{1,300})\$|\\\((.{1,300}?)\\\)")


def why_not_asked(question: str, answer: str, gold: str) -> str | None:
    """Reason why an answer does not answer the prompt's question; None if it does."""
    question = question.translate(FULL_WIDTH)
    try:
        said, expected = read(answer), read(gold)
    except Unreadable:
        return None
    if isinstance(said, Named) and not isinstance(expected, Named) and len(said.name) == 1 and said.name.islower():
        names = {name for text in expressions(question) if "=" in text for name in _variables(text)}
        names |= {name for formula in _FORMULA.finditer(question) for name in _variables(formula[1] or formula[2])}
        if names and said.name not in names:
            return "it is the value of another variable"
    if isinstance(expected, Quantity) and expected.unit is not None and isinstance(said, Quantity):
        asked_for = {_unit(" ".join(words)) for words in _asked(question)}
        if expected.unit in asked_for and said.unit is not None and not _is_same(said.unit, expected.unit):
            return "its unit differs from the prompt's"
    bare = isinstance(expected, Quantity) and expected.unit is None
    if bare and not all(are_known([noun], question, 1) for noun in _counted(said) if question):
        return "it counts something that the prompt does not mention"
    if bare and _has_other_unit(question, answer, said, gold):
        return "its unit differs from the prompt's"
    return None


def _variables(formula: str) -> list[str]:
    return re.findall(r"(?<![A-Za-z\\])[a-z](?![A-Za-z])", formula)


def _counted(answer: Any) -> list[str]:
    """The nouns behind a number: apples. Units of measurement are none."""
    unit = answer.unit if isinstance(answer, Quantity) else None
    known = unit is None or unit in table().values()
    return [] if unit is None or known else [name[2:] for name, _ in unit.dimensions if name.startswith("W:")]


def _is_same(one: Unit, other: Unit) -> bool:
    return one.dimensions == other.dimensions and same_number(one.factor, other.factor)


def _asked(question: str) -> Iterator[list[str]]:
    """Every run of words that may be the unit that the prompt asks for."""
    for asked in _ASKED.finditer(question):
        words = asked[1].split()
        yield from (words[:many] for many in range(len(words), 0, -1))


def _has_other_unit(question: str, answer: str, said: Any, gold: str) -> bool:
    """True if a bare gold answer has the requested unit, and the answer another unit of the same kind."""
    if not isinstance(said, Quantity) or said.unit is None:
        return False
    for asked in _ASKED.finditer(question):
        words = asked[1].split()
        for many in range(len(words), 0, -1):
            unit = _unit(" ".join(words[:many]))
            if unit is None:
                continue
            if unit != said.unit and is_money(unit) and is_money(said.unit):
                return True
            if unit.dimensions != said.unit.dimensions and not is_money(unit) and not is_money(said.unit):
                return not any(name.startswith("W:") for name, _ in (*unit.dimensions, *said.unit.dimensions))
            if unit != said.unit:
                return _differs(f"{gold} {' '.join(words[:many])}", answer)
            break
    return False


def _differs(gold: str, answer: str) -> bool:
    try:
        return not same_answer(gold, answer)
    except Unreadable:
        return True


def _unit(words: str) -> Unit | None:
    """The unit that words name; None if the table does not have it."""
    try:
        unit = unit_of(tokens(f"1 {words}")[1:])[1]
    except Unreadable:
        return None
    physical = unit is not None and not any(name.startswith("W:") for name, _ in unit.dimensions)
    return unit if unit is None or physical or unit in table().values() or len(unit.dimensions) > 1 else None
