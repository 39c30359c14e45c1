"""An answer that only repeats the question scores 0: it needs no knowledge, so a policy finds it first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from posttrain.rewards.correct import CorrectOptions, correct
from posttrain.rollout import Score
from tests.library.models.tiny import rollout_of

ECHOES = [
    ("What is 17^2?", "17^2", "289"),
    ("What is $17^{2}$?", "17^2", "289"),
    ("What is 17²?", r"x = 17^2", "289"),
    (r"Compute $\dbinom{5}{2}$.", r"\binom{5}{2}", "10"),
    (r"Evaluate $\log_2 8$.", r"\log_2(8)", "3"),
    ("What is 360/24?", r"\frac{360}{24}", "15"),
    (r"What is $\frac{360}{24}$?", "360/24", "15"),
    ("What is 12 ÷ 4?", "12/4", "3"),
    ("7! = ?", "7!", "5040"),
    ("Expand $(x+1)^2$.", "(x+1)^2", "x^2+2x+1"),
    ("Factor x^2+2x+1.", "x^2 + 2x + 1", "(x+1)^2"),
    ("Solve 2x + y = 7 for y.", "2x+y=7", "y=7-2x"),
    ("Write 3/4 as a decimal.", r"\frac34", "0.75"),
    ("How many cm is 2.5 m?", r"2.5 \text{ m}", "250 cm"),
    (r"Simplify $\sqrt{50}$", r"\sqrt{50}", r"5\sqrt{2}"),
    ("Write 50% as a fraction.", r"50\%", "1/2"),
    (r"Simplify $\frac{2x+4}{2}$.", "(2x+4)/2", "x+2"),
    ("Expand (x+2)(x-3).", "(x-3)(x+2)", "x^2-x-6"),
    ("Factor x^2-x-6.", "-6-x+x^2", "(x+2)(x-3)"),
    ("What is 17 squared?", "17^2", "289"),
    ("What is the square root of 144?", r"\sqrt{144}", "12"),
    ("What is 360 divided by 24?", "360/24", "15"),
    ("Solve x^2 = 49.", r"\pm\sqrt{49}", r"\pm 7"),
    ("What is 7! / 5!?", r"\frac{7!}{5!}", "42"),
    ("How many cm are 2.5 meters?", r"2.5\text{ m}", "250 cm"),
    ("How many cm are 2.5 m?", r"250\text{ m}", "250"),
    ("How many metres per second is 72 km/h?", r"20\text{ km/h}", "20"),
    ("Solve for $x$: $3x + 12 = 6$.", "y = -2", "-2"),
]
ANSWERS = [
    ("Which is larger, 5 or 3?", "5.00", "5"),
    ("Tom has 12 apples and gives none away. How many has he?", r"12 \text{ apples}", "12"),
    ("What is 117^2 - 13400?", "17^2", "289"),
    ("Is 4 even or odd?", "even", r"\text{even}"),
    ("Which of the points (1,2) and (3,4) is nearer to 0?", "(1, 2)", "(1,2)"),
    (r"Which is larger, $\frac{1}{2}$ or 1/3?", r"\frac12", r"\frac{1}{2}"),
    ("Which is larger, 1,000 or 2?", "1000", "1,000"),
    ("How many ways are there for 10 switches with 2 states?", "1024", "2^{10}"),
    ("How many ways are there for ten switches?", "2^{10}", "1024"),
    ("How many cm are 2.5 m?", r"250\text{ cm}", "250"),
    ("Solve for $x$: $3x + 12 = 6$.", "x = -2", "-2"),
    ("Write one half of 1.5 as a fraction.", r"\frac{3}{4}", "0.75"),
]


def scored(question: str, answer: str, gold: str) -> Score:
    rollout = rollout_of(rf"So it is \boxed{{{answer}}}.", gold)
    prompt = replace(rollout.prompt, messages=[{"role": "user", "content": question}])
    (score,) = correct.score_fn(CorrectOptions(answer="math"), None)([replace(rollout, prompt=prompt)])  # type: ignore[arg-type]
    assert isinstance(score, Score)
    return score


@pytest.mark.parametrize(("question", "answer", "gold"), ECHOES)
def test_an_expression_of_the_question_is_no_answer(question: str, answer: str, gold: str) -> None:
    assert scored(question, answer, gold).value == 0.0
    assert scored(question, gold, gold).value == 1.0


@pytest.mark.parametrize(("question", "answer", "gold"), ANSWERS)
def test_an_answer_may_stand_in_the_question(question: str, answer: str, gold: str) -> None:
    assert scored(question, answer, gold).value == 1.0
