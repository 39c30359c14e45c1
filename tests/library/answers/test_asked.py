"""An equal answer to another question."""

from __future__ import annotations

import pytest

from posttrain.answers.asked import why_not_asked

VARIABLE, UNIT = "it is the value of another variable", "its unit differs from the prompt's"


@pytest.mark.parametrize(
    ("question", "answer", "gold", "why"),
    [
        ("Solve for $x$: $3x + 12 = 6$.", "y = -2", "-2", VARIABLE),
        ("Solve for $x$: $3x + 12 = 6$.", "x = -2", "-2", None),
        ("Solve it.", "y = -2", "-2", None),
        ("Solve for $x$: $3x + 12 = 6$.", "y = -2", "y = -2", None),
        ("How many cm are 2.5 m?", "250 m", "250", UNIT),
        ("How many cm are 2.5 m?", "250 cm", "250", None),
        ("How many apples are left?", "250 cm", "250", None),
        ("How fast is it in km/h?", "72 km", "72", UNIT),
        ("How many cm are 2.5 m?", "250 kg", "250", UNIT),
        ("How many metres per second is 72 km/h?", "20 km/h", "20", UNIT),
        ("What is it in dollars?", "20 euros", "20", UNIT),
        ("How many cm are 2.5 m?", "250 m", "250 cm", UNIT),
        ("How many?", "no number (", "5", None),
    ],
)
def test_what_was_asked(question: str, answer: str, gold: str, why: str | None) -> None:
    assert why_not_asked(question, answer, gold) == why
