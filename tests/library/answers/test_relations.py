"""Equations, chains and inequalities."""

from __future__ import annotations

from fractions import Fraction

import pytest

from posttrain.answers.nodes import (
    INFINITY,
    MINUS_INFINITY,
    Answer,
    Call,
    Equation,
    Named,
    Num,
    Quantity,
    Reals,
    Span,
    Unreadable,
    Var,
)
from posttrain.answers.quantities import quantity
from posttrain.answers.relations import relation
from posttrain.answers.tokens import tokens

FIVE, X = Num.of(5), Var("x")
BELOW = Span(MINUS_INFINITY, False, FIVE, False)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("x = 5", Named("x", Quantity(FIVE))), ("5 = x", Named("x", Quantity(FIVE))), ("= 5", Quantity(FIVE)),
        ("5 = 5", Quantity(FIVE)), ("y = x", Named("y", Quantity(X))),
        ("x = 2x", Equation(X, Call("mul", (Num.of(2), X)))),
        (r"\min = 5", Named(r"\min", Quantity(FIVE))), (r"x \approx 5", Named("x", Quantity(FIVE, rounded=True))),
        ("x < 5", Reals((BELOW,), "x")), ("5 > x", Reals((BELOW,), "x")),
        ("1 <= x < 5", Reals((Span(Num.of(1), True, FIVE, False),), "x")),
        ("x >= 5", Reals((Span(FIVE, True, INFINITY, False),), "x")),
        ("x != 5", Reals((BELOW, Span(FIVE, False, INFINITY, False)), "x")),
        ("2x + 1 = y", Named("y", Quantity(Call("add", (Call("mul", (Num.of(2), X)), Num.of(1)))))),
        ("2x = 3y", Equation(Call("mul", (Num.of(2), X)), Call("mul", (Num.of(3), Var("y"))))),
        (r"1/3 \approx 0.333", Quantity(Call("div", (Num.of(1), Num.of(3))))),
        ("1 m = 100 cm", None), ("50% = 0.5", None),
    ],
)  # fmt: skip
def test_relation(text: str, answer: Answer | None) -> None:
    found = relation(tokens(text), lambda run: quantity(run, units=True))
    assert answer is None or found == answer


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("5 = 6", "not the same"), ("x =", "one side of a relation is empty"), ("x < y", "not solved for a variable"),
        ("1 < x = 5", "an equation within an inequality"), ("1 < x > 0", "in two directions"),
        ("1 m = 1 s", "an equation of different units"), ("1=" * 13 + "1", "too many relations"),
        ("1 < 2 < x", "whose variable is not in the middle"), ("1 != x != 2", "one of them `not equal`"),
    ],
)  # fmt: skip
def test_what_is_no_relation(text: str, reason: str) -> None:
    with pytest.raises(Unreadable, match=reason):
        relation(tokens(text), lambda run: quantity(run, units=True))


def test_a_third_is_close_to_its_decimals() -> None:
    found = relation(tokens(r"x = 1/3 \approx 0.333"), lambda run: quantity(run, units=True))
    assert isinstance(found, Named) and found.value == Quantity(Call("div", (Num.of(1), Num(Fraction(3)))))
