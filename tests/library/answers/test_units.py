"""Units: what tokens after a number are, and what one of a unit is."""

from __future__ import annotations

from fractions import Fraction

import pytest

from posttrain.answers.nodes import Unreadable
from posttrain.answers.numbers import exact
from posttrain.answers.tokens import Token, tokens
from posttrain.answers.units import PERCENT, ends_expression, is_money, table, unit_of


def after(text: str) -> list[Token]:
    return tokens(f"1 {text}")[1:]


@pytest.mark.parametrize(
    ("text", "dimensions", "size"),
    [
        ("cm", {"L": 1}, "0.01"), ("km/h", {"L": 1, "T": -1}, "5/18"), ("square feet", {"L": 2}, "0.09290304"),
        ("m^2", {"L": 2}, "1"), ("m^{-2}", {"L": -2}, "1"), ("meters squared", {"L": 2}, "1"),
        ("cubic m", {"L": 3}, "1"),
        ("hours", {"T": 1}, "3600"), ("miles per hour", {"L": 1, "T": -1}, "0.44704"), ("dollars", {"$": 1}, "1"),
        ("cents", {"$": 1}, "0.01"), ("red apples", {"W:apple": 1}, "1"), ("boxes", {"W:box": 1}, "1"),
        ("cities", {"W:city": 1}, "1"), ("cups in total", {"L3": 1}, None),
        (r"\frac{km}{s}", {"L": 1, "T": -1}, "1000"),
        ("(cm)", {"L": 1}, "0.01"), ("°C", {"W:celsius": 1}, "1"), ("degrees Fahrenheit", {"W:fahrenheit": 1}, "1"),
        ("N", {"L": 1, "M": 1, "T": -2}, "1000"), ("KG", {"M": 1}, "1000"), ("个", {"W:个": 1}, "1"),
        ("people", {"W:person": 1}, "1"), ("US dollars", None, None),
    ],
)  # fmt: skip
def test_unit_of(text: str, dimensions: dict[str, int] | None, size: str | None) -> None:
    scale, unit = unit_of(after(text))
    assert scale == 1 and unit is not None
    if size is not None:
        assert dict(unit.dimensions) == dimensions and exact(unit.factor) == Fraction(size)


def test_scales_and_percent() -> None:
    assert unit_of(after("million")) == (10**6, None)
    assert unit_of(after("million dollars")) == (10**6, table()["dollar"])
    assert unit_of(after("%")) == (1, PERCENT) and unit_of(after("per cent")) == (1, PERCENT)


@pytest.mark.parametrize("text", ["thirds", "glass", "degrees x", "m^5", "square", "very red apples"])
def test_what_is_no_unit(text: str) -> None:
    with pytest.raises(Unreadable):
        unit_of(after(text))
    assert not ends_expression(after(text), 0)


def test_ends_expression() -> None:
    assert ends_expression(tokens("2 cm"), 1) and not ends_expression(tokens("2 x"), 1)


def test_is_money() -> None:
    assert is_money(table()["cent"]) and is_money(table()["€"]) and not is_money(table()["cm"])


def test_table() -> None:
    known = table()
    assert exact(known["kilometer"].factor) == 1000 and exact(known["mph"].factor) == Fraction("0.44704")
    assert known["rad"].dimensions == (("angle", 1),) and exact(known["knot"].factor) == Fraction(463, 900)
