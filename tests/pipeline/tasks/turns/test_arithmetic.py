"""Expressions are computed exactly."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest

from posttrain.pipeline.toy_tasks.turns import arithmetic as module


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1+2*3", Fraction(7)), ("(1+2)*3", Fraction(9)), ("7-2-1", Fraction(4)), ("1/3", Fraction(1, 3)),
        ("--4", Fraction(4)), ("-(2-5)", Fraction(3)), ("12/2/3", Fraction(2)),
    ],
)  # fmt: skip
def test_values(text: str, value: Fraction) -> None:
    parser = module._Parser(re.findall(r"\d+|.", text))
    assert parser.sum() == value and parser.next == ""
    assert module.calculate(f" {text} ") == value


def test_what_is_no_expression() -> None:
    for text, words in (
        ("1/0", "division by zero"),
        ("(1", "not closed"),
        ("1+", "missing at the end"),
        ("+", "missing before"),
    ):
        with pytest.raises(ValueError, match=words):
            module._Parser(list(text)).sum()
    assert module._Parser(["1", "+"]).next == "1"
