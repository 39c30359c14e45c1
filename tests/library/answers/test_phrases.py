"""Answers in words."""

from __future__ import annotations

import pytest

from posttrain.answers.nodes import INFINITY, WHOLE_LINE, Answer, Items, Node, Num, Reals, Span, Words
from posttrain.answers.phrases import described, in_digits, phrase


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("no solutions", Items("set", ())), ("the empty set", Items("set", ())), ("All real numbers", WHOLE_LINE),
        ("real numbers", WHOLE_LINE), ("all positive reals", Reals((Span(Num.of(0), False, INFINITY, False),))),
        ("3:45 PM", Words("15:45")), ("12 a.m.", Words("0:00")), ("7 remainder 2", Words("7 remainder 2")),
        ("Alice", Words("alice")), ("No", Words("no")), ("xy", None), ("alpha", None), ("cats or dogs", None),
        ("18", None),
    ],
)  # fmt: skip
def test_phrase(words: str, answer: Answer | None) -> None:
    assert phrase(words) == answer


@pytest.mark.parametrize(
    ("words", "digits"),
    [
        ("twelve apples", "12 apples"), ("seventy-two", "72"), ("one hundred and thirty four", "134"),
        ("two million three thousand", "2003000"), ("zero", "0"), ("apples", None), ("and two", None),
    ],
)  # fmt: skip
def test_in_digits(words: str, digits: str | None) -> None:
    assert in_digits(words) == digits


def test_described() -> None:
    def value(text: str) -> Node:
        return Num.of(int(text))

    assert described("all real numbers greater than 3", value) == "x > 3"
    assert described("all numbers except 3", value) == r"x \ne 3"
    between = described("all numbers between 1 and 4, inclusive", value)
    assert between == Reals((Span(Num.of(1), True, Num.of(4), True),))
    assert described("numbers strictly between 1 and 4", value) == Reals((Span(Num.of(1), False, Num.of(4), False),))
    assert described("all numbers between 1 and 4", value) is None and described("3", value) is None
