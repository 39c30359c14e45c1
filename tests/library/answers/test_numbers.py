"""The values of expressions: exact, equal, close and in order."""

from __future__ import annotations

from fractions import Fraction

import pytest

from posttrain.answers.nodes import INFINITY, MINUS_INFINITY, Node, Unreadable
from posttrain.answers.numbers import Evaluation, exact, is_close, less, same_number
from posttrain.answers.token_runs import whole
from posttrain.answers.tokens import tokens


def node(text: str) -> Node:
    return whole(tokens(text))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1/2 + 1/3", "5/6"), ("-3", "-3"), ("2 * 3", "6"), ("2^{-2}", "1/4"), (r"\sqrt{9/4}", "3/2"), ("5!", "120"),
        (r"\binom{5}{2}", "10"), (r"\lfloor 7/2 \rfloor", "3"), (r"\lceil 7/2 \rceil", "4"), ("|-3|", "3"),
        (r"\sqrt[3]{8}", "2"), ("8^{2/3}", "4"), (r"\lfloor \pi \rfloor", "3"), (r"\ln 1", "0"), ("10 - 4", "6"),
        ("0^3", "0"), (r"\sqrt{0}", "0"), (r"\lceil \pi \rceil", "4"),
    ],
)  # fmt: skip
def test_exact(text: str, value: str) -> None:
    assert exact(node(text)) == Fraction(value)


@pytest.mark.parametrize(
    "text", [r"\sqrt{2}", r"\pi", "1/0", "x", "1001!", "2^{99999}", "0^0", r"\infty + 1", "(1/2)!"]
)
def test_what_is_not_exact(text: str) -> None:
    assert exact(node(text)) is None


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (r"\sqrt{8}", r"2\sqrt{2}"), (r"\sin(\pi/6)", "1/2"), (r"\cos 0", "1"), (r"\tan(\pi/4)", "1"),
        (r"e^{\ln 3}", "3"),
        (r"\log_{2} 8", "3"), (r"\log_{10} 100", "2"), ("x^2 - 1", "(x-1)(x+1)"), (r"\sin^2 x", r"1 - \cos^2 x"),
        (r"\sec x", r"\frac{1}{\cos x}"), (r"\cot x", r"\frac{\cos x}{\sin x}"), (r"\csc x", r"\frac{1}{\sin x}"),
        (r"\arcsin(1/2)", r"\frac{\pi}{6}"), (r"\arccos(1/2)", r"\frac{\pi}{3}"), (r"\arctan 1", r"\frac{\pi}{4}"),
        (r"\sinh x", r"\frac{e^x - e^{-x}}{2}"), (r"\cosh x", r"\frac{e^x + e^{-x}}{2}"),
        (r"\tanh x", r"\frac{\sinh x}{\cosh x}"), (r"\sqrt[3]{-8}", "-2"), ("i^2", "-1"), ("|x|", r"\sqrt{x^2}"),
        (r"\binom{n}{2}", r"\frac{n(n-1)}{2}"), (r"\pi - \pi", "0"), ("x", "x"),
    ],
)  # fmt: skip
def test_same_number(left: str, right: str) -> None:
    assert same_number(node(left), node(right))


@pytest.mark.parametrize(
    ("left", "right"),
    [("1/3", "0.333"), (r"\pi", "3.14"), ("x", "y"), ("x", "1"), ("x^2", "x^3"), (r"\sqrt{2}", "1"), ("1", "x")],
)
def test_other_numbers(left: str, right: str) -> None:
    assert not same_number(node(left), node(right))


def test_what_has_no_value() -> None:
    with pytest.raises(Unreadable):
        same_number(node("0/0"), node("0/0"))


@pytest.mark.parametrize(
    ("left", "right", "close"),
    [
        (r"\pi", "3.14", True), (r"\pi", "3.16", False), ("1/3", "0.33", True), ("1/2", "0.5", True),
        ("1/2", "0.6", False), (r"\pi", r"\sqrt{10}", False), ("1/3", "1/3", True), ("2/3", "1", False),
        ("i", "1", False),
    ],
)  # fmt: skip
def test_is_close(left: str, right: str, close: bool) -> None:
    assert is_close(node(left), node(right)) is close


def test_less() -> None:
    assert less(node("1/3"), node("1/2")) and not less(node("1/2"), node("1/2"))
    assert less(node("3"), node(r"\pi")) and not less(node(r"\pi"), node("3"))
    assert less(MINUS_INFINITY, node("1")) and less(node("1"), INFINITY) and not less(INFINITY, INFINITY)
    with pytest.raises(Unreadable):
        less(node("x"), node("1"))


def test_evaluation_at_a_point() -> None:
    point = {"x": Fraction(3), "n": Fraction(4)}
    assert Evaluation(30, point, "e").value(node("x^2 + n")) == 13
    assert abs(Evaluation(30, point, "10").value(node(r"\log(100)")) - 2) < 1e-20
    assert abs(Evaluation(30, point, "e").value(node(r"\log(e^x)")) - 3) < 1e-20
    assert abs(Evaluation(30, {"x": Fraction(1, 2)}, "e").value(node("x!")) - 0.886226925452758) < 1e-12
    for text in (r"\tan(\pi/2)", r"\ln 0", r"e^{100000}", r"\lfloor \sqrt{4.0} + i \rfloor", "y", r"\exp(50)"):
        with pytest.raises(Unreadable):
            Evaluation(30, point, "e").value(node(text))
