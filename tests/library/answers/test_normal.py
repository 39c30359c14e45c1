"""The normal form of expressions: what counts as the same expression in another spelling."""

from __future__ import annotations

import pytest

from posttrain.answers.nodes import Quantity, Unreadable
from posttrain.answers.normal import Normal, has_open_root, is_sum, normal, operations, sums_within
from posttrain.answers.read import read


def form(text: str) -> Normal:
    answer = read(text, units=False)
    assert isinstance(answer, Quantity)
    return normal(answer.value)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (r"\sqrt{72}", "72^{1/2}"),
        (r"\sqrt{72}", r"\sqrt{36 \cdot 2}"),
        (r"\sqrt{72}", r"|\sqrt{72}|"),
        (r"\sqrt{72}", r"\sqrt{(\sqrt{72})^2}"),
        ("(x+1)^2", "(1+x)(x+1)"),
        ("(x+1)^2", r"\frac{2(x+1)^2}{2}"),
        ("x - y", "-(y - x)"),
        ("x", "x + 1 - 1"),
        ("x^5", "x^2 x^3"),
        ("1/x", "x^{-1}"),
        ("7", r"\sqrt{49}"),
        ("6", "3!"),
        (r"\sin x", r"\sin(x)"),
        ("2^x", "2^{x+0}"),
        ("0", "x - x"),
        ("1", "x^0"),
        ("a b^{n}", "b^{n} a"),
    ],
)
def test_the_same_expression(one: str, other: str) -> None:
    assert form(one) == form(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("(x+1)^2", "x^2+2x+1"),
        (r"\sqrt{72}", r"6\sqrt{2}"),
        ("2(x+1)", "2x+2"),
        ("x^2-9", "(x-3)(x+3)"),
        ("2^x", "3^x"),
        (r"\sin x", r"\cos x"),
        ("|x|", "x"),
        ("x^{100}", "x^{101}"),
    ],
)
def test_other_expressions(one: str, other: str) -> None:
    assert form(one) != form(other)


def test_what_a_form_says() -> None:
    assert is_sum(form("x+1")) and not is_sum(form("2x"))
    assert [sums_within(form(text)) for text in ("x^2-9", "(x-3)(x+3)", "(x+1)^3", "x/(x+1)")] == [0, 2, 3, 1]
    assert [has_open_root(form(text)) for text in (r"\sqrt{72}", r"6\sqrt{2}", r"\sqrt[3]{16}", "x")] == [
        True,
        False,
        True,
        False,
    ]


def test_operations() -> None:
    texts = ("7", "-x", "3/4", "2x", "x^2+2x+1", r"\sqrt{2}/2")
    assert [operations(read(text, units=False).value) for text in texts] == [0, 0, 0, 1, 4, 2]  # type: ignore[union-attr]


def test_a_division_by_zero_has_no_form() -> None:
    with pytest.raises(Unreadable, match="division by 0"):
        form("x/(1-1)")
