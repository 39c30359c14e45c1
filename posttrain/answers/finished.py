"""Check whether an answer equal to the gold answer is finished: solved, computed, and not copied from the prompt."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from posttrain.answers.equal import is_scientific, same_answer
from posttrain.answers.nodes import (
    Answer,
    Call,
    Const,
    Equation,
    Items,
    Named,
    Node,
    Num,
    Percent,
    Quantity,
    Unit,
    Unreadable,
    Var,
    variables,
    walk,
)
from posttrain.answers.normal import has_open_root, is_sum, normal, operations, sums_within
from posttrain.answers.numbers import exact, same_number
from posttrain.answers.read import read

_OPERATORS = {"add", "mul", "div", "neg", "pow", "root", "pm", "exp", "binom", "factorial", "abs"}
MOST_STATED = 40
"""Maximum number of expressions of a prompt that are compared."""
_FORMULA = re.compile(r"\$\$?([^$]{1,300})\$\$?|\\\((.{1,300}?)\\\)|\\\[(.{1,300}?)\\\]", re.DOTALL)
_WORD = re.compile(
    r"(?<![\\A-Za-z])(?!(?:sqrt|sin|cos|tan|log|ln)\b)[A-Za-z]{2,}(?![({])|(?<![\\A-Za-z])[aAI](?= [A-Za-z])"
    r"|[?:;]|[.,](?=\s|\Z)"
)
"""Characters and words that end an expression in plain text."""
_MEASURE = re.compile(r"(?<![\w.])\d[\d.,]*\s?(?:\\?%|[A-Za-z°]{1,12}(?:/[A-Za-z]{1,6})?)")
"""A number with a unit or a percent sign."""


def why_unfinished(question: str, said: str, gold: str) -> str | None:
    """Reason why an answer equal to the gold answer is not finished; None if it is."""
    try:
        answer, expected = _read(said), _read(gold)
    except Unreadable:
        return None
    if _is_number(expected) and _has_equation(answer):
        return "it is an equation that is not solved"
    stated = _stated(question, gold)
    wanted, leaves = list(_leaves(expected)), list(_leaves(answer))
    if all(map(is_value, wanted)):
        if not all(map(is_value, leaves)):
            return "an operation on numbers is not computed"
        if _repeats_number(answer, expected, stated):
            return "it repeats a number of the prompt"
    elif all(exact(node) is not None for node in wanted):
        most = max(map(operations, wanted))
        if any(not is_value(leaf) and operations(leaf) > most for leaf in leaves):
            return "an operation on numbers is not computed"
    if not any(map(variables, leaves)) and _functions(leaves) - _functions(wanted):
        return "a function of a number is not computed"
    if any(_repeats(answer, expected, one) for one in stated):
        return "it repeats an expression of the prompt"
    return None


def is_value(node: Node) -> bool:
    """True if nothing is left to compute: 7, 2.5, 3/4 and 1.5 * 10^3, but not 8/4."""
    if isinstance(node, Call) and node.name == "neg":
        inner = node.args[0]
        return isinstance(inner, Call) and inner.name != "neg" and is_value(inner)
    if isinstance(node, Num):
        return True
    if not isinstance(node, Call):
        return False
    if node.name == "div":
        whole = all(isinstance(part, Num) and part.value.denominator == 1 for part in node.args)
        return whole and (value := exact(node)) is not None and value.denominator != 1
    return is_scientific(node)


def _functions(nodes: list[Node]) -> set[str]:
    """The names of functions in expressions, besides roots; all logarithms are one."""
    named = {part.name for node in nodes for part in walk(node) if isinstance(part, Call)}
    return {name.replace("log10", "ln").replace("log", "ln") for name in named - _OPERATORS}


def _read(text: str) -> Answer:
    text = re.sub(r"\\pm(?![a-z])|±", "-", text)
    try:
        return read(text)
    except Unreadable:
        return read(text, units=False)


def reads_number(text: str) -> bool:
    """True if a whole text is a number, with or without a name and a unit."""
    try:
        return _is_number(_read(text))
    except Unreadable:
        return False


def _is_number(answer: Answer) -> bool:
    """True if an answer is a number, with or without a name."""
    inner = answer.value if isinstance(answer, Named) else answer
    return isinstance(inner, Quantity | Percent) and not variables(inner.value)


def _has_equation(answer: Answer) -> bool:
    members = answer.members if isinstance(answer, Items) else (answer,)
    return any(isinstance(member, Equation) for member in members)


def _leaves(answer: Any) -> Iterator[Node]:
    """Every expression in an answer."""
    if isinstance(answer, Num | Const | Var | Call):
        yield answer
    elif isinstance(answer, tuple):
        for part in answer:
            yield from _leaves(part)
    elif is_dataclass(answer) and not isinstance(answer, Unit):
        for field in fields(answer):
            yield from _leaves(getattr(answer, field.name))


def _kind(answer: Answer) -> str:
    """How a number is written: whole, decimal, fraction, percent or scientific."""
    inner = answer.value if isinstance(answer, Named) else answer
    if isinstance(inner, Percent):
        return "percent"
    if not isinstance(inner, Quantity):
        return "other"
    node = inner.value.args[0] if isinstance(inner.value, Call) and inner.value.name == "neg" else inner.value
    if isinstance(node, Num):
        return "whole" if node.value.denominator == 1 else "decimal"
    return "fraction" if isinstance(node, Call) and node.name == "div" else "scientific"


def _repeats_number(answer: Answer, expected: Answer, stated: list[Answer]) -> bool:
    """True if the prompt has the number in another form than the gold answer's, and the answer is that form."""
    if isinstance(answer, Quantity) and answer.unit is not None and answer in stated:
        return isinstance(expected, Quantity) and expected.unit not in (None, answer.unit)
    kind = _kind(expected)
    forms = {_kind(one) for one in stated if _kind(one) not in (kind, "other", "scientific")}
    if _kind(answer) in forms and _kind(answer) != kind:
        return True
    is_lowest = all(map(_is_lowest, _leaves(expected)))
    reducible = any(not _is_lowest(leaf) for one in stated for leaf in _leaves(one))
    return is_lowest and reducible and not all(map(_is_lowest, _leaves(answer)))


def _is_lowest(node: Node) -> bool:
    """True if a fraction is in lowest terms."""
    node = node.args[0] if isinstance(node, Call) and node.name == "neg" else node
    if not isinstance(node, Call) or node.name != "div" or not all(isinstance(part, Num) for part in node.args):
        return True
    top, bottom = (part.value for part in node.args if isinstance(part, Num))
    return bottom != 0 and abs(Fraction(top) / bottom).denominator == abs(bottom)


def _repeats(answer: Answer, expected: Answer, stated: Answer) -> bool:
    """True if an answer only repeats an expression of the prompt, in this or another spelling."""
    if isinstance(stated, Equation | Named) and isinstance(expected, Equation | Named):
        return _repeats_equation(answer, expected, stated)
    said, wanted, given = (_expression(one) for one in (answer, expected, stated))
    if said is None or wanted is None or given is None:
        return False
    reduced, aim, start = normal(said), normal(wanted), normal(given)
    if start == aim:
        done = operations(given) <= operations(wanted)  # the prompt states the answer itself
        return not done and (operations(said) >= operations(given) or operations(said) > operations(wanted) + 1)
    if reduced == aim:
        return False
    if reduced == start or (has_open_root(reduced) and not has_open_root(aim)):
        return True
    if is_sum(aim):
        return not is_sum(reduced) or sums_within(reduced) > sums_within(aim)
    return sums_within(reduced) < sums_within(aim)


def _repeats_equation(answer: Answer, expected: Answer, stated: Answer) -> bool:
    """True if an equation is not solved for the variable of the gold answer, although the prompt has an equal one."""
    if not isinstance(expected, Named) or isinstance(stated, Named):
        return answer == stated and answer != expected
    return isinstance(answer, Equation) or (isinstance(answer, Named) and answer.name != expected.name)


def _expression(answer: Answer) -> Node | None:
    """The expression of a value without a unit."""
    inner = answer.value if isinstance(answer, Named) else answer
    return inner.value if isinstance(inner, Quantity) and inner.unit is None else None


@lru_cache(maxsize=512)
def _stated(question: str, gold: str) -> list[Answer]:
    """The expressions of a prompt that equal the gold answer."""
    stated: list[Answer] = []
    for text in expressions(question):
        try:
            if same_answer(gold, text):
                stated.append(_read(text))
        except Unreadable:
            if (node := _same_but_open(text, gold)) is not None:
                stated.append(node)
    return stated


def _same_but_open(text: str, gold: str) -> Answer | None:
    """An expression of the prompt whose operations are still to be done, if it equals the gold answer."""
    try:
        one, other = _expression(_read(text)), _expression(_read(gold))
        return Quantity(one) if one is not None and other is not None and same_number(other, one) else None
    except Unreadable:
        return None


@lru_cache(maxsize=512)
def expressions(question: str) -> tuple[str, ...]:
    """Texts in a prompt that may be expressions: formulas, runs of signs and numbers, and measures."""
    texts = [next(filter(None, formula.groups())) for formula in _FORMULA.finditer(question)]
    plain = _FORMULA.sub(" ; ", question)
    texts += [run.strip(" .,!") for run in _WORD.split(plain)]
    texts += [measure[0] for measure in _MEASURE.finditer(question)]
    sides = [side for text in texts if "=" in text for side in re.split(r"=", text)]
    useful = (text.strip() for text in (*texts, *sides))
    return tuple(dict.fromkeys(text for text in useful if re.search(r"[\d^√\\]|[a-z]\s?[+*/-]", text)))[:MOST_STATED]
