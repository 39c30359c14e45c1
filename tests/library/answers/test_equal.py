"""Spellings of an answer that are right, and answers that are not."""

from __future__ import annotations

import pytest

from posttrain.answers.equal import Pairs, is_scientific, same, same_answer, same_value, why_unreadable
from posttrain.answers.nodes import Call, Const, Num, Quantity, Unreadable, Words

SAME = [
    ("1/2", "0.5"),
    ("1/2", r"\dfrac12"),
    ("1,234", "1234"),
    ("1234", r"1{,}234"),
    ("1234", "1 234"),
    ("18", r"\$18.00"),
    ("18", "18 eggs"),
    ("25%", "0.25"),
    ("25%", "25"),
    ("0.25", "25 percent"),
    ("5 cm", "0.05 m"),
    ("5 cm", r"5\text{ cm}"),
    ("36 km/h", "10 m/s"),
    ("25°C", "77°F"),
    ("150 minutes", "2 hours and 30 minutes"),
    ("$1.50", "150 cents"),
    ("5/2", r"2\frac{1}{2}"),
    ("1500000", "1.5 million"),
    ("1500", r"1.5 \times 10^3"),
    ("1/3", r"0.\overline{3}"),
    (r"(-\infty,1)\cup(5,\infty)", "x<1 or x>5"),
    ("[1,2)", r"1 \le x < 2"),
    ("(1,2]", r"]1;2]"),
    ("x > 3", r"(3,\infty)"),
    (r"x \ne 3", r"\mathbb{R}\setminus\{3\}"),
    (r"\{1,2\}", "x=1 or x=2"),
    ("1, 2", "2 and 1"),
    (r"\pm 3", "3, -3"),
    ("x=5", "5"),
    ("5", "f(2) = 5"),
    ("1/3", r"1/3 \approx 0.333"),
    ("18", "9+9=18"),
    ("x^2+x", "x(x+1)"),
    (r"\frac{\sqrt2}{2}", r"\frac{1}{\sqrt{2}}"),
    (r"\sin^2 x", r"1-\cos^2(x)"),
    ("-1", r"e^{i\pi}"),
    ("3", r"\log_2 8"),
    ("y=2x+3", "2x-y+3=0"),
    (r"\text{No solution}", "no solution"),
    (r"\emptyset", "the empty set"),
    ("-2", r"\sqrt[3]{-8}"),
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{bmatrix} 1 & 2 \\ 3 & 4 \end{bmatrix}"),
    ("10^{100000}", "10^{100000}"),
    ("5 ft 6 in", "5'6\""),
    ("45.5°", "45°30'"),
    ("24 cm", r"4\cdot 6\text{ cm} = 24\text{ cm}"),
    ("1000.5", "1,000 1/2"),
    ("3/5", r"3 \over 5"),
    ("2(x+1)", r"2\left[x+1\right]"),
    ("6x-2", r"\frac{d^2y}{dx^2} = 6x - 2"),
    (r"\{0\}\cup[3,\infty)", r"x = 0 \text{ or } x \ge 3"),
    (r"(0,\infty)", r"\mathbb{R}_{>0}"),
    (r"\emptyset", "{}"),
    (r"\{2,4\}", r"A \cap B = \{2,4\}"),
    (r"\{(1,6),(6,1)\}", r"(x,y) \in \{(1,6),(6,1)\}"),
    (r"\{1,4\}, \{2,3\}", "{3, 2}, {4, 1}"),
    ("1/4", "2^{-2}"),
    ("-18.5", "－１８．５"),
    ("300千米", "300 千米"),
    ("3:45 PM", r"3\!:\!45\text{ p.m.}"),
    ("12 remainder 3", r"12 \text{ R } 3"),
    ("no solution", r"\emptyset"),
    ("72", "seventy-two"),
    ("8", r"\gcd(48, 40) = 8"),
    ("11", "11_{10}"),
]
OTHER = [
    ("1/3", "0.333"),
    (r"\pi", "3.14"),
    ("18", "18 or 19"),
    ("18", "180"),
    ("5 cm", "5 m"),
    ("$18", "€18"),
    ("[1,2)", "(1,2]"),
    ("1234", "12,34"),
    ("123456", "1,23,456"),
    ("1234.5", "1.234,5"),
    ("18", "x18"),
    ("0.333", "1/3 ≈ 0.333"),
    ("x^2", "y^2"),
    ("25%", "0.25%"),
    ("18", "10^(10^10)"),
    ("18", "0/0"),
    ("|x|", "x"),
    ("1", "1+e^{-1000}"),
    ("1", r"\tanh(1000)"),
    ("25%", "25 or 0.25"),
    ("5", "5 cm or 5 m"),
    ("18", "18 hundred"),
    ("18", "18th"),
    ("18", "~18"),
    ("18", "~~18~~"),
    ("180", "180 (or 181)"),
    ("(3,4)", "(y,x) = (3,4)"),
    (r"\{1,2\}", "x = 1, y = 2"),
    ("18", "half = 18"),
    (r"\{1, 2\}", r"\{\{1, 2\}\}"),
    ("x > 2", "x > 2, where x is an integer"),
    ("1/6", "1/2/3"),
    (r"\{1,4\}, \{2,3\}", "{1, 2}, {3, 4}"),
    (r"\frac{\pi}{4}", r"\frac{\pi}{4}^\circ"),
    ("5 cm", "5 cm = 0.5 m"),
    ("(2,7)", "y = 2, x = 7"),
    ("18", "18,"),
    ("3:45 PM", "3:45 AM"),
    ("12 remainder 3", "12 remainder 4"),
    ("300千米", "300米"),
    ("72", "seventy-three"),
]


def right(gold: str, found: str, pairs: Pairs = "unsure") -> bool:
    try:
        return same_answer(gold, found, pairs)
    except Unreadable:
        return False


@pytest.mark.parametrize(("gold", "found"), SAME)
def test_other_spellings_of_an_answer_are_right(gold: str, found: str) -> None:
    assert right(gold, found)


@pytest.mark.parametrize(("gold", "found"), OTHER)
def test_other_answers_are_not_right(gold: str, found: str) -> None:
    assert not right(gold, found)


def test_what_a_pair_is_says_the_option() -> None:
    assert right("(1, 5)", "1 < x < 5", "intervals") and right("(1, 5)", "1 < x < 5")
    assert right("(1, 5)", "x = 1, y = 5", "points") and right("(1, 5)", "x = 1, y = 5")
    assert not right("(1, 5)", "1 < x < 5", "points") and not right("(1, 5)", "x = 1, y = 5", "intervals")


def test_answers_that_cannot_be_read_are_named() -> None:
    assert why_unreadable(r"\int x dx") is not None and "1/2x" not in (why_unreadable("18") or "")
    assert why_unreadable(r"\frac{1}{2}") is None


def test_parts_are_compared_kind_by_kind() -> None:
    half, one = Call("div", (Num.of(1), Num.of(2))), Num.of(1)
    assert same(Quantity(half), Quantity(Call("div", (Num.of(2), Num.of(4))))) and not same(Quantity(one), Words("one"))
    assert same_value(half, Call("div", (Num.of(2), Num.of(4)))) and not same_value(half, one)
    assert same_value(Const("infinity"), Const("infinity")) and not same_value(Const("infinity"), one)
    assert same_value(Num.of(2), Call("add", (one, one))), "whether it is finished is another question"


def test_is_scientific() -> None:
    power = Call("pow", (Num.of(10), Num.of(3)))
    assert is_scientific(power) and is_scientific(Call("mul", (Num.of(2), power)))
    assert not is_scientific(Call("pow", (Num.of(9), Num.of(3)))) and not is_scientific(Call("mul", (power, power)))
