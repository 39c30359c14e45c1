"""Tokens of an answer as models write it."""

from __future__ import annotations

from fractions import Fraction

import pytest

from posttrain.answers.nodes import Unreadable
from posttrain.answers.tokens import tokens


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1/2", "1 / 2"), ("1,234.5 cm", "1,234.5 cm"), ("12 345", "12 345"), (r"\dfrac{1}{2}", r"\frac { 1 } { 2 }"),
        (r"\left( 1 \right)", "( 1 )"), ("**18**", "18"), ("$x$", "x"), (r"\$18", "$ 18"), ("x²", "x ^ { 2 }"),
        (r"\text{ cm}", "cm"), ("x <= 3", r"x \le 3"), ("a ≠ b", r"a \ne b"), ("½", r"\frac { 1 } { 2 }"),
        ("⁵⁄₆", r"\frac { 5 } { 6 }"), ("kilómetros", "kilometros"), ("５", "5"),
        ("45°30'", "45 degrees 30 arcminutes"),
        ("45°30'15\"", "45 degrees 30 arcminutes 15 arcseconds"), ("5'6\"", "5 ft 6 in"), ("(1,234)", "( 1 , 234 )"),
        (r"90^\circ", "90 °"), (r"14,\! 700", "14,700"), (r"1{,}234", "1,234"), ("_18_", "18"), ("2**3", "2 ^ 3"),
    ],
)  # fmt: skip
def test_tokens(text: str, found: str) -> None:
    assert " ".join(token.text for token in tokens(text)) == found


def test_values_and_kinds() -> None:
    (number,) = tokens("1,234.5")
    assert (number.kind, number.value, number.gap) == ("number", Fraction("1234.5"), False)
    assert [token.value for token in tokens(r"0.1\overline{6}")] == [Fraction(1, 6)]
    assert [token.value for token in tokens("1.5e3")] == [1500]
    assert [token.value for token in tokens(".5")] == [Fraction(1, 2)]
    assert [(token.kind, token.gap) for token in tokens(r"x \le 3")] == [
        ("word", False), ("command", True), ("number", True),
    ]  # fmt: skip
    assert [token.kind for token in tokens("x+")] == ["word", "sign"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1" * 1600, "longer than 1500 characters"), ("1+" * 400, "more than 600 parts"), ("~18", "a tilde"),
        ("1.2.3", "two decimal points"), (".", "a point without digits"), ("1e9999", "an exponent that is too large"),
        ("9" * 1300, "more than 1200 digits"), ("x$y$z$", "a dollar sign too many"), ("@", "'@' in an answer"),
        ("(" * 50, "levels of brackets"),
    ],
)  # fmt: skip
def test_what_is_no_answer(text: str, reason: str) -> None:
    with pytest.raises(Unreadable, match=reason):
        tokens(text)
