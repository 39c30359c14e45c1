"""What a prompt says about the form of its answer."""

from __future__ import annotations

from fractions import Fraction

import pytest

from posttrain.answers.prompted import as_asked, factors, why_not_as_asked
from posttrain.answers.read import read

PERCENT, ORDER = "What percent of the pupils play?", "Write 3, 1 and 2 in increasing order."
ROUNDED, FACTORS = "Round 5/19 to two decimal places.", "Find the prime factorization of 56."


@pytest.mark.parametrize(
    ("question", "answer", "gold", "compared"),
    [
        (PERCENT, r"40\%", "40", "40"),
        (PERCENT, "40 percent", "40", "40"),
        (PERCENT, "40%", "40%", "40%"),
        (PERCENT, "30%", "40", "30%"),
        ("A price of 90 rose by 20%. What was it before?", "75%", "75", "75%"),
        (ROUNDED, "approximately 0.26", "0.26", "0.26"),
        (ROUNDED, r"\frac{5}{19} \approx 0.26", "0.26", " 0.26"),
        (ROUNDED, r"\frac{5}{19} \approx 0.27", "0.27", r"\frac{5}{19} \approx 0.27"),
        ("What is 5/19?", "approximately 0.26", "0.26", "approximately 0.26"),
        (ORDER, "1 < 2 < 3", "1, 2, 3", "1, 2, 3"),
        (ORDER, "(1, 2, 3)", "1, 2, 3", "1, 2, 3"),
        ("Write 720000000 in scientific notation.", "7.2e8", r"7.2 \times 10^8", r"7.2 \times 10^{8}"),
        (r"Find $\mathbf{u} + \mathbf{v}$.", "u + v = (1, 2)", "(1, 2)", " (1, 2)"),
        ("Solve $3x - 10 = 5$.", "3x - 10 = 5", "5", "3x - 10 = 5"),
        ("Find $a_n$.", "a_n = 6n", "6n", "a_n = 6n"),
    ],
)
def test_what_is_superfluous_is_left_out(question: str, answer: str, gold: str, compared: str) -> None:
    assert as_asked(question, answer, gold) == compared


@pytest.mark.parametrize(
    ("question", "answer", "gold", "why"),
    [
        (ORDER, "1, 2, 3", "1, 2, 3", None),
        (ORDER, "2, 1, 3", "1, 2, 3", "it is in another order"),
        ("What are the roots?", "2, 1", "1, 2", None),
        (FACTORS, r"7 \cdot 2^3", r"2^3 \cdot 7", None),
        (FACTORS, "56", r"2^3 \cdot 7", "its factors differ from the requested factors"),
        (FACTORS, r"8 \cdot 7", r"2^3 \cdot 7", "its factors differ from the requested factors"),
        ("What is it?", "56", r"2^3 \cdot 7", None),
        (PERCENT, r"\$10", "10", "it is an amount of money, but the prompt asks for a percentage"),
        (PERCENT, "10", "10", None),
        (ORDER, "no list (", "1, 2", None),
    ],
)
def test_the_form_that_is_asked_for(question: str, answer: str, gold: str, why: str | None) -> None:
    assert why_not_as_asked(question, answer, gold) == why


def test_factors() -> None:
    assert factors(read(r"2^3 \cdot 7")) == {Fraction(2): 3, Fraction(7): 1} and factors(read("8")) == {Fraction(8): 1}
    assert factors(read("x + 1")) is None and factors(read("2^{1/2}")) is None and factors(read("1, 2")) is None
