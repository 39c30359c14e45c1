"""Values with units, percent signs and currencies, and lists of values."""

from __future__ import annotations

from fractions import Fraction

import pytest

from posttrain.answers.nodes import Answer, Items, Named, Num, Percent, Quantity, Unreadable, Var
from posttrain.answers.numbers import exact
from posttrain.answers.quantities import compound, items, quantity
from posttrain.answers.tokens import tokens
from posttrain.answers.units import table

ONE, TWO = Quantity(Num.of(1)), Quantity(Num.of(2))


def read(text: str) -> Answer:
    return quantity(tokens(text), units=True)


@pytest.mark.parametrize(
    ("text", "total", "unit"),
    [("2 hours and 30 minutes", "2.5", "hour"), ("5 ft 3 in", "5.25", "ft"), ("1 h 1 min 1 s", "3661/3600", "h")],
)
def test_compound(text: str, total: str, unit: str) -> None:
    assert compound(tokens(text)) == Quantity(Num(Fraction(total)), table()[unit])


@pytest.mark.parametrize("text", ["5 ft", "2 minutes 3 hours", "2 hours 3 cm", "2 x 3 y", "a b c d", "2 cats 3 dogs"])
def test_what_is_no_compound(text: str) -> None:
    assert compound(tokens(text)) is None


def test_quantity() -> None:
    assert read("5 cm") == Quantity(Num.of(5), table()["cm"]) and read("5") == Quantity(Num.of(5))
    assert read("25%") == Percent(Num.of(25)) and read("-$5") == Quantity(Num.of(-5), table()["$"])
    assert read("2 million dollars") == Quantity(Num.of(2_000_000), table()["dollar"])
    assert read(r"2 \pm 1") == Items("set", (Quantity(Num.of(3)), ONE))
    per_hour = read("$5 per hour")
    assert isinstance(per_hour, Quantity) and per_hour.unit is not None
    assert per_hour.unit.dimensions == (("$", 1), ("T", -1)) and exact(per_hour.unit.factor) == Fraction(1, 3600)


@pytest.mark.parametrize(
    ("text", "reason"),
    [("$", "a currency without a number"), ("$5 €", "two units of money"), ("2x cm", "a unit after a variable"),
     (r"1 \pm 2 \pm 3", "two plus-minus signs")],
)  # fmt: skip
def test_what_is_no_quantity(text: str, reason: str) -> None:
    with pytest.raises(Unreadable, match=reason):
        read(text)
    with pytest.raises(Unreadable, match="after an expression"):
        quantity(tokens("5 )"), units=False)


def test_items() -> None:
    assert items([ONE, Items("set", (TWO,))]) == Items("set", (ONE, TWO))
    assert items([Named("x_1", ONE), Named("x_2", TWO)]) == Named("x", Items("set", (ONE, TWO)))
    assert items([Named("x", ONE), TWO]) == Named("x", Items("set", (ONE, TWO)))
    assert items([Named("x", ONE), Named("y", TWO)]) == Items("set", (Named("x", ONE), Named("y", TWO)))
    with pytest.raises(Unreadable, match="some values have names"):
        items([ONE, Named("x", ONE), Named("y", Quantity(Var("a")))])
    with pytest.raises(Unreadable, match="more than 60"):
        items([ONE] * 61)
