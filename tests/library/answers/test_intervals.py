"""Unions of intervals by hand."""

from __future__ import annotations

import pytest

from posttrain.answers.intervals import (
    complement,
    intersection,
    normal,
    reals_of,
    same_end,
    same_reals,
    union,
)
from posttrain.answers.nodes import (
    INFINITY,
    MINUS_INFINITY,
    WHOLE_LINE,
    Call,
    Items,
    Num,
    Quantity,
    Reals,
    Span,
    Unreadable,
    Words,
)


def span(low: int, high: int, brackets: str = "[]") -> Span:
    return Span(Num.of(low), brackets[0] == "[", Num.of(high), brackets[1] == "]")


def reals(*spans: Span, variable: str | None = None) -> Reals:
    return Reals(spans, variable)


def test_reals_of() -> None:
    one, two = Quantity(Num.of(1)), Quantity(Num.of(2))
    assert reals_of(Items("(", (one, two))) == reals(span(1, 2, "()"))
    assert reals_of(Items("set", (one, two))) == reals(span(1, 1), span(2, 2))
    assert reals_of(WHOLE_LINE) is WHOLE_LINE
    with pytest.raises(Unreadable, match="not a set of numbers"):
        reals_of(Words("all"))
    with pytest.raises(Unreadable, match="ends are not numbers"):
        reals_of(Items("(", (one, Words("b"))))


def test_union_joins_what_touches() -> None:
    assert union([reals(span(3, 4)), reals(span(1, 2, "[)")), reals(span(2, 3))]).spans == (span(1, 4),)
    assert union([reals(span(1, 2, "[)")), reals(span(2, 3, "(]"))]).spans == (span(1, 2, "[)"), span(2, 3, "(]"))
    assert union([reals(span(1, 2, "()")), reals(span(1, 2))]).spans == (span(1, 2),)
    assert union([reals(span(1, 5)), reals(span(2, 3))]).spans == (span(1, 5),)
    assert union([reals(span(1, 2), variable="x"), reals(span(4, 5), variable="x")]).variable == "x"
    assert union([]).variable is None
    with pytest.raises(Unreadable, match="different variables"):
        union([reals(span(1, 2), variable="x"), reals(span(1, 2), variable="y")])


def test_intersection() -> None:
    assert intersection([reals(span(1, 3)), reals(span(2, 4, "(]"))]).spans == (span(2, 3, "(]"),)
    assert intersection([reals(span(1, 3, "[)")), reals(span(1, 3, "(]"))]).spans == (span(1, 3, "()"),)
    assert intersection([reals(span(1, 2)), reals(span(3, 4))]).spans == ()
    assert intersection([reals(span(1, 2)), reals(span(2, 3))]).spans == (span(2, 2),)


def test_complement() -> None:
    left, right = Span(MINUS_INFINITY, False, Num.of(1), False), Span(Num.of(1), False, INFINITY, False)
    assert complement(Quantity(Num.of(1))).spans == (left, right)
    assert complement(reals(right)).spans == (Span(MINUS_INFINITY, False, Num.of(1), True),)


def test_same_reals() -> None:
    half = Call("div", (Num.of(2), Num.of(2)))
    assert same_reals(reals(span(1, 2)), reals(Span(half, True, Num.of(2), True)))
    assert not same_reals(reals(span(1, 2)), reals(span(1, 2, "[)")))
    assert not same_reals(reals(span(1, 2)), reals(span(1, 3))) and not same_reals(reals(span(1, 2)), reals())
    assert not same_reals(reals(span(1, 2), variable="x"), reals(span(1, 2), variable="y"))


def test_same_end() -> None:
    assert same_end(INFINITY, INFINITY) and not same_end(INFINITY, MINUS_INFINITY)
    assert same_end(Num.of(1), Num.of(1)) and not same_end(Num.of(1), Num.of(2))


def test_normal_refuses_what_is_no_interval() -> None:
    assert normal([span(1, 1, "[)")]) == ()
    with pytest.raises(Unreadable, match="in the wrong order"):
        normal([span(2, 1)])
    with pytest.raises(Unreadable, match="infinity does not belong"):
        normal([Span(Num.of(1), True, INFINITY, True)])
    with pytest.raises(Unreadable, match="too many"):
        normal([span(n, n) for n in range(30)])
