"""Expressions, read from tokens."""

from __future__ import annotations

from fractions import Fraction

import pytest

from posttrain.answers.expression import Parser, degrees, negative
from posttrain.answers.nodes import Call, Const, Node, Num, Unreadable, Var
from posttrain.answers.tokens import tokens


def shown(node: Node) -> str:
    """Return an expression in brackets: (add 1 (mul 2 x))."""
    if isinstance(node, Call):
        return f"({' '.join([node.name, *map(shown, node.args)])})"
    return str(node.value) if isinstance(node, Num) else node.name


def parsed(text: str, *, units: bool = False) -> str:
    return shown(Parser(tokens(text), units=units).expression())


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1+2-x", "(add (add 1 2) (neg x))"), ("-2", "-2"), ("-x", "(neg x)"), (r"1 \pm 2", "(pm 1 2)"),
        (r"\pm 2", "(pm 0 2)"), ("+2", "2"), ("2x", "(mul 2 x)"), ("2/-3", "(div 2 -3)"),
        ("2*x/y", "(div (mul 2 x) y)"),
        ("x^2", "(pow x 2)"), ("x^{-2}", "(pow x -2)"), ("2^3^2", "(pow 2 (pow 3 2))"), ("x^-2", "(pow x -2)"),
        ("5!", "(factorial 5)"), ("(1+2)3x", None), ("[1+2]x", "(mul (add 1 2) x)"), ("|x|", "(abs x)"),
        (r"\lfloor x \rfloor", "(floor x)"), (r"\lceil x \rceil", "(ceil x)"), (r"\frac{1}{2}", "(div 1 2)"),
        (r"\frac12", "(div 1 2)"), (r"\frac a b", "(div a b)"), (r"2\frac{1}{2}", "5/2"), ("2 1/2", "5/2"),
        (r"2\frac{x}{2}", "(mul 2 (div x 2))"), (r"{3 \over 5}", "(div 3 5)"), (r"{3 \choose 2}", "(binom 3 2)"),
        (r"\binom{5}{2}", "(binom 5 2)"), (r"\sqrt{2}", "(root 2 2)"), (r"\sqrt[3]{2}", "(root 2 3)"),
        (r"\sqrt2", "(root 2 2)"), ("sqrt(2)", "(root 2 2)"), (r"\sqrt x", "(root x 2)"), (r"\cbrt{2}", "(root 2 3)"),
        (r"\sin x", "(sin x)"), (r"\sin^2 x", "(pow (sin x) 2)"), (r"\sin^{-1} x", "(arcsin x)"),
        (r"\sin 2x", "(sin (mul 2 x))"), (r"\log_2 8", "(div (ln 8) (ln 2))"), (r"\ln(x)", "(ln x)"), (r"\pi", "pi"),
        ("pi", "pi"), ("e", "e"), (r"\theta", "theta"), ("x_1", "x_1"), ("x_{n+1}", "x_n+1"),
        ("xy^2", "(mul x (pow y 2))"),
        ("ab", "(mul a b)"), ("alpha", "alpha"), (r"\infty", "infinity"), ("2!2", None),
    ],
)  # fmt: skip
def test_expression(text: str, found: str | None) -> None:
    if found is None:
        with pytest.raises(Unreadable):
            parsed(text)
    else:
        assert parsed(text) == found


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1+-2", "^'-' where"), ("--2", "two signs in a row"), ("1/2/3", "two divisions"), ("1/2x", "a product after"),
        ("2 3", "two numbers|another factor"), ("5!!", "a double factorial"), ("", "ends too early"),
        ("(1", "is missing"),
        (r"\frac123", "without braces"), ("apple", "within an expression"), (r"\foo", r"\\foo"),
        (r"\sin -x", "without brackets"), (r"\cos^{-1}", "ends too early"), ("2 3/2", "not below 1"),
    ],
)  # fmt: skip
def test_what_is_no_expression(text: str, reason: str) -> None:
    with pytest.raises(Unreadable, match=reason):
        parsed(text)


def test_the_parser_stops_before_a_unit() -> None:
    parser = Parser(tokens("2 cm"), units=True)
    assert shown(parser.expression()) == "2" and parser.next is not None and parser.next.text == "cm"
    assert parser.at("cm", "m") and not parser.at("m")
    parser.take("cm")
    assert parser.next is None and not parser.at("cm")
    with pytest.raises(Unreadable, match="cm is missing"):
        parser.take("cm")


def test_exponent() -> None:
    assert shown(Parser(tokens("-2"), units=False).exponent()) == "-2"
    assert shown(Parser(tokens("{1+x}"), units=False).exponent()) == "(add 1 x)"


def test_negative_and_degrees() -> None:
    assert negative(Num.of(2)) == Num.of(-2) and negative(Var("x")) == Call("neg", (Var("x"),))
    half_turn = degrees(Num.of(180))
    assert half_turn == Call("mul", (Num.of(180), Call("div", (Const("pi"), Num(Fraction(180))))))
