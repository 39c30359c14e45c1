"""Final answers of every kind, read as a whole."""

from __future__ import annotations

import pytest

from posttrain.answers.nodes import (
    INFINITY,
    MINUS_INFINITY,
    WHOLE_LINE,
    Answer,
    Based,
    Call,
    Items,
    Matrix,
    Named,
    Node,
    Num,
    Quantity,
    Reals,
    Span,
    Unreadable,
    Var,
    Words,
)
from posttrain.answers.read import Reader, read
from posttrain.answers.tokens import tokens
from posttrain.answers.units import table

ONE, TWO, FIVE = (Quantity(Num.of(number)) for number in (1, 2, 5))
SET = Items("set", (ONE, TWO))


def reals(low: Node, brackets: str, high: Node, variable: str | None = None) -> Reals:
    return Reals((Span(low, brackets[0] == "[", high, brackets[1] == "]"),), variable)


N1, N2, ZERO = Num.of(1), Num.of(2), Num.of(0)
CASES: list[tuple[str, Answer]] = [
    ("5", FIVE), ("5.", FIVE), ("$5$", FIVE), ("five", FIVE), ("5 cm", Quantity(Num.of(5), table()["cm"])),
    ("1, 2", SET), ("1 and 2", SET), ("1 or 2", SET), (r"\{1, 2\}", SET), ("x = 1 or x = 2", Named("x", SET)),
    ("(1, 2)", Items("(", (ONE, TWO))), (r"\langle 1, 2 \rangle", Items("<", (ONE, TWO))),
    ("1:2", Items(":", (ONE, TWO))),
    ("1 to 2", Items(":", (ONE, TWO))), ("[1, 2, 5]", Items("[", (ONE, TWO, FIVE))),
    ("P = (1, 2)", Named("P", Items("(", (ONE, TWO)))), ("[1, 2)", reals(N1, "[)", N2)),
    ("]1; 2]", reals(N1, "(]", N2)),
    ("1 < x < 2", reals(N1, "()", N2, "x")), (r"x \in [1, 2]", reals(N1, "[]", N2, "x")),
    (r"x \in \{1, 2\}", Named("x", SET)), (r"\mathbb{R}", WHOLE_LINE),
    (r"\mathbb{R}_{>0}", reals(ZERO, "()", INFINITY)),
    (r"\mathbb{R}^+", reals(ZERO, "()", INFINITY)), (r"\emptyset", Items("set", ())), ("{}", Items("set", ())),

      (r"(-\infty, 1) \cup (1, \infty)", Reals((Span(MINUS_INFINITY, False, N1, False),
     Span(N1, False, INFINITY, False)))),
    (r"\mathbb{R} \setminus \{1\}", Reals((Span(MINUS_INFINITY, False, N1, False), Span(N1, False, INFINITY, False)))),
    (r"\{x | x > 1\}", reals(N1, "()", INFINITY)), ("x > 1 and x < 2", reals(N1, "()", N2, "x")),
    ("x = 1 or x > 2", Reals((Span(N1, True, N1, True), Span(N2, False, INFINITY, False)), "x")),
    ("x < 1 or x > 2", Reals((Span(MINUS_INFINITY, False, N1, False), Span(N2, False, INFINITY, False)), "x")),
    ("1011_2", Based("1011", 2)), ("11_{10}", Based("11", 10)), ("no solution", Items("set", ())),
    ("Alice", Words("alice")), (r"3 \over 5", Quantity(Call("div", (Num.of(3), Num.of(5))))),
    (r"\begin{pmatrix} 1 & 2 \end{pmatrix}", Matrix(((N1, N2),))), (r"5 \pmod{7}", FIVE),
    (r"(1, \pm 2)", Items("set", (Items("(", (ONE, TWO)), Items("(", (ONE, Quantity(Num.of(-2))))))),
    (r"\{1\}, \{2\}", Items("set", (Items("set", (ONE,)), Items("set", (TWO,))))), ("(5)", FIVE), ("{5}", FIVE),
    ("all numbers between 1 and 2, inclusive", reals(N1, "[]", N2)),
    ("all numbers at least 1", reals(N1, "[)", INFINITY, "x")),
    (r"\{\{1, 2\}\}", Items("set", (SET,))),
]  # fmt: skip


@pytest.mark.parametrize(("text", "answer"), CASES)
def test_read(text: str, answer: Answer) -> None:
    assert read(text) == answer


def test_a_named_point_and_a_share_of_something() -> None:
    assert read("P(1, 2)") == Named("P", Items("(", (ONE, TWO)))
    assert read("3/8 of the pizza") == Quantity(Call("div", (Num.of(3), Num.of(8))))


def test_without_units_letters_are_variables() -> None:
    assert read("5 m", units=False) == Quantity(Call("mul", (Num.of(5), Var("m"))))
    assert Reader(units=True).answer(tokens("5")) == FIVE


def test_cases_are_a_list() -> None:
    assert read(r"\begin{cases} x = 1 \\ y = 2 \end{cases}") == Items("set", (Named("x", ONE), Named("y", TWO)))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"), ("1, 2, ...", "not finished"), ("1,, 2", "an empty part"), ("x = 1 or y = 2", "different names"),
        ("x > 1, x < 2", "joined by commas"), (r"\{1\}, 2", "a list of sets and other values"),
        (r"\{x > 1, 2\}", "a set of relations"), ("(1]", "brackets around one value"),
        ("]1, 2, 5]", "an interval without two ends"), (r"\{x | 1\}", "not understood"),
    ],
)  # fmt: skip
def test_what_is_no_answer(text: str, reason: str) -> None:
    with pytest.raises(Unreadable, match=reason):
        read(text)
