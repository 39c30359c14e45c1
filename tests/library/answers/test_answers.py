"""Final answers: how they are found, read and compared, and what hostile ones cost."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest

from posttrain.answers.choice import chosen
from posttrain.answers.equal import Pairs, same_answer, why_unreadable
from posttrain.answers.extract import Form, final_answer
from posttrain.answers.nodes import Unreadable

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
    ("18", "9+9"),
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


@pytest.mark.parametrize(
    ("text", "form", "answer"),
    [
        (r"We add. $\boxed{18}$", "auto", "18"),
        (r"\boxed{3}. Wait, that is wrong. \boxed{4}", "boxed", "4"),
        (r"$x=\boxed{1}$ or $x=\boxed{2}$", "boxed", "1 or 2"),
        ("9 + 9\n#### 18\n\nHope this helps!", "auto", "18"),
        ("**Final Answer**\n\n18", "answer_is", "18"),
        ("The answer is 18, because 9 + 9 is 18.", "auto", "18"),
        ("17?</think>The answer is 18", "auto", "18"),
        ("I add.\n<answer>18</answer>", "auto", "18"),
        (r"$x \in \boxed{[1, 2]}$", "auto", "[1, 2]"),
        (r"$N \equiv \boxed{9} \pmod{1000}$", "auto", "9"),
        (r"$A = \boxed{9\pi} \approx 28.27$", "auto", r"9\pi"),
        (r"\boxed{3} \quad \text{and} \quad \boxed{4}", "auto", "3, 4"),
        (r"$x = \boxed{3}$, $y = \boxed{4}$", "auto", "x = 3, y = 4"),
        (r"The side is $\boxed{7}$ cm.", "auto", "7 cm"),
        ("First \\boxed{3}.\n\nNo, it is \\boxed{4}", "auto", "4"),
        ("#### 18\n#### Explanation\nI add.", "auto", "18"),
        ("18", "auto", "18"),
        ("因此，答案是：18。", "auto", "18"),
        ("よって、答えは 18 です。", "auto", "18"),
        ("따라서 답은 18입니다.", "auto", "18"),
        ("Also ist die **Antwort: 18**", "auto", "18"),
        ("La bonne réponse est 18.", "auto", "18"),
        ("La respuesta final es 18.", "auto", "18"),
        ("La risposta è 18.", "auto", "18"),
        ("A resposta é 18.", "auto", "18"),
        ("Ответ: 18", "auto", "18"),
    ],
)
def test_the_final_answer_is_found(text: str, form: Form, answer: str) -> None:
    assert final_answer(text, form).rstrip(".") == answer


@pytest.mark.parametrize(
    "text",
    [
        r"The answer is not \boxed{18}",
        r"\boxed{18} is wrong, take \boxed{}",
        "First 9.\n\nSo the total is 18 apples.",
        "答案不是18。",
        r"答案不是 \boxed{18}。",
        r"\boxed{18} is wrong.",
        "The answer is 18. Wait, no.",
        r"\boxed{18}, so we take \boxed{19}",
        r"\boxed{18}?",
        "<answer>18</answer>5",
        "#### ",
        "I doubt that the answer is 18.",
        "#### 18 #### 19",
        r"\boxed{18",
        r"\boxed{18} \times 2",
        "<think> The answer is 18",
        "",
    ],
)
def test_denied_and_doubtful_answers_are_unreadable(text: str) -> None:
    with pytest.raises(Unreadable):
        final_answer(text)


def test_a_truncated_answer_is_unreadable() -> None:
    with pytest.raises(Unreadable, match="truncated"):
        final_answer("The answer is 18", truncated=True)
    assert final_answer(r"\boxed{18}", truncated=True) == "18"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("First 9.\n\nSo the total is 18 apples.", "18 apples"),
        ("So Janet makes $18 every day at the market.", "$18"),
        ("16\n17\n18", "18"),
        ("9 + 9 = 18", "9 + 9 = 18"),
    ],
)
def test_text_without_a_mark_is_read_on_request(text: str, answer: str) -> None:
    assert final_answer(text, unmarked=True).rstrip(".") == answer


def test_text_of_doubt_without_a_mark_is_unreadable() -> None:
    for text in ("I don't think that it is 18", "It is 18 or 19", "We add.\n####"):
        with pytest.raises(Unreadable):
            final_answer(text, unmarked=True)


BIG = 10_000_000
HOSTILE = {
    "brackets": "(" * 200 + "18" + ")" * 200,
    "fractions": r"\frac{1}{" * 200 + "2" + "}" * 200,
    "powers": "2^" * 200 + "2",
    "a tower": "10^{10^{10}}",
    "factorials": "1000!!!!",
    "an exponent": "e^{10^{9}}",
    "a polynomial": "(x+1)^{5000}",
    "digits": "9" * 1100,
    "roots": r"\sqrt{" * 39 + "2" + "}" * 39,
    "unions": r"\cup".join(rf"(\sqrt{{{n}}},\sqrt{{{n + 1}}})" for n in range(38)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_answers_cost_little_and_are_never_right(name: str) -> None:
    start = time.process_time()
    for gold in ("18", "x^2+1", r"\sqrt{2}", r"\{1,2\}", "[1,2]"):
        assert not right(gold, HOSTILE[name])
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    "unit",
    (
        "a|(|*|\\|$|\n|answer is |####|\\boxed{|so |if you |~|😀|🎉 |<answer>|<answer><|the answer is a, b|"
        "#### 1 a\n|\\boxed{1}a |"
        f"1 a |답은 |not |= |é|，|the answer is {' ' * 15_000}z"
    ).split("|"),
)
def test_completions_of_ten_megabytes_cost_little(unit: str) -> None:
    text = unit * (BIG // len(unit)) + ("" if unit.isascii() else "x")
    start = time.process_time()
    for form in ("auto", "boxed", "answer_is", "hashes", "whole"):
        with suppress(Unreadable):
            assert not same_answer("18", final_answer(text, form))
    with suppress(Unreadable):
        assert not same_answer("18", final_answer(text, unmarked=True))
    with suppress(Unreadable):
        assert chosen(text, "ABCD", unmarked=True) != "B"
    assert time.process_time() - start < 5


def test_answers_that_cannot_be_read_are_named() -> None:
    assert why_unreadable(r"\int x dx") is not None and "1/2x" not in (why_unreadable("18") or "")
    assert why_unreadable(r"\frac{1}{2}") is None
