"""An answer that only repeats the question scores 0: it needs no knowledge, so a policy finds it first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from posttrain.answers.finished import expressions, is_value, why_unfinished
from posttrain.answers.nodes import Quantity
from posttrain.answers.read import read
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
    ("What is 117^2 - 13400?", "17^2", "289"),
    ("How many ways are there for ten switches?", "2^{10}", "1024"),
]
ANSWERS = [
    ("Which is larger, 5 or 3?", "5.00", "5"),
    ("Tom has 12 apples and gives none away. How many has he?", r"12 \text{ apples}", "12"),
    ("Is 4 even or odd?", "even", r"\text{even}"),
    ("Which of the points (1,2) and (3,4) is nearer to 0?", "(1, 2)", "(1,2)"),
    (r"Which is larger, $\frac{1}{2}$ or 1/3?", r"\frac12", r"\frac{1}{2}"),
    ("Which is larger, 1,000 or 2?", "1000", "1,000"),
    ("How many ways are there for 10 switches with 2 states?", "1024", "2^{10}"),
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


@pytest.mark.parametrize(
    ("question", "found", "gold", "why"),
    [
        ("Solve $5x - 7 = 18$.", "5x = 25", "x = 5", "it is an equation that is not solved"),
        ("Solve $5x - 7 = 18$.", "5x = 25", "5", "it is an equation that is not solved"),
        ("Solve $5x - 7 = 18$.", "5", "x = 5", None),
        ("Solve $5x - 7 = 18$.", "x = 5", "5", None),
        ("Solve $5x - 7 = 18$.", "x = 25/5", "5", "an operation on numbers is not computed"),
        ("How many?", r"3 \times 10^8", "300000000", None),
        ("How many?", "2^5", "2^{5}", None),
        ("How many?", "32", "2^{5}", None),
        ("How many?", r"2^3 \cdot 2^2", "2^{5}", "an operation on numbers is not computed"),
        ("How much of it?", "6/4", "3/2", None),
        ("How much of it?", "-6/4", "-3/2", None),
        (r"Simplify $\frac{12}{8}$.", "6/4", "3/2", "it repeats a number of the prompt"),
        ("Write 0.5 as a fraction.", "0.5", "1/2", "it repeats a number of the prompt"),
        (r"Simplify $\sqrt{72}$.", "72^{1/2}", r"6\sqrt{2}", "it repeats an expression of the prompt"),
        (r"Simplify $\sqrt{72}$.", r"\sqrt{36\cdot 2}", r"6\sqrt{2}", "it repeats an expression of the prompt"),
        (r"Simplify $\sqrt{72}$.", r"2\sqrt{18}", r"6\sqrt{2}", "it repeats an expression of the prompt"),
        (r"Simplify $\sqrt{72}$.", r"\sqrt{2}\cdot 6", r"6\sqrt{2}", None),
        ("How long is the diagonal?", r"\sqrt{72}", r"6\sqrt{2}", None),
        ("Expand $(x+1)^2$.", "(x+1)(1+x)", "x^2+2x+1", "it repeats an expression of the prompt"),
        ("Expand $(x+1)^2$.", "x(x+1)+x+1", "x^2+2x+1", "it repeats an expression of the prompt"),
        ("Expand $(x+1)^2$.", "1 + 2x + x^2", "x^2+2x+1", None),
        ("Factor $x^2-9$.", "(x+3)(x-3)", "(x-3)(x+3)", None),
        ("Factor $x^2-9$.", "x^2-3^2", "(x-3)(x+3)", "it repeats an expression of the prompt"),
        ("Simplify $2x+3x$.", "2x+3x", "5x", "it repeats an expression of the prompt"),
        ("Simplify $2x+3x$.", r"x \cdot 5", "5x", None),
        ("Solve $2x + y = 7$ for y.", "2x + y - 7 = 0", "y = 7 - 2x", "it repeats an expression of the prompt"),
        ("Find the line.", "2x + y = 7", "y = 7 - 2x", None),
        ("What is it?", "no number (", "5", None),
    ],
)
def test_what_is_left_to_do(question: str, found: str, gold: str, why: str | None) -> None:
    assert why_unfinished(question, found, gold) == why


@pytest.mark.parametrize(
    ("text", "value"),
    [("7", True), ("-7", True), ("7.5", True), ("3/4", True), ("-3/4", True), ("1.5 * 10^3", True), ("10^6", True),
     ("8/4", False), ("1.5/2", False), ("2+3", False), ("2^5", False), ("x", False), ("-(-(3/4))", False)],
)  # fmt: skip
def test_which_trees_are_values(text: str, value: bool) -> None:
    answer = read(text)
    assert isinstance(answer, Quantity) and is_value(answer.value) is value


def test_expressions_of_a_prompt() -> None:
    question = r"Given $f(x) = x^2$ and \(a+b\), what is 17^2? It weighs 2.5 kg, or 50% of 3/4."
    found = expressions(question)
    assert {"f(x) = x^2", "x^2", "f(x)", "a+b", "17^2", "2.5 kg", "50%", "3/4"} - {"f(x)"} <= set(found)
    assert not any("weighs" in text for text in found) and expressions("How are you?") == ()


@pytest.mark.parametrize(
    ("question", "answer", "gold", "right"),
    [
        ("?", "four ninths", "4/9", True),
        ("?", "one half", "1/2", True),
        ("?", "[[5,4],[1,2]]", r"\begin{pmatrix}5&4\\1&2\end{pmatrix}", True),
        ("?", "[[5,4],[2,1]]", r"\begin{pmatrix}5&4\\1&2\end{pmatrix}", False),
        ("?", "(1101)_2", "1101_2", True),
        ("?", r"n\pi, n \in \mathbb{Z}", r"n\pi, n \in \mathbb{Z}", True),
        ("?", "5 March 2024", "March 5, 2024", True),
        ("?", "March 5", "March 5, 2024", False),
        ("?", "Sept. 3rd", "the 3rd of September", True),
        ("How many marbles?", "34 marbles", "34", True),
        ("How many marbles?", "34 pairs", "34", False),
    ],
)
def test_forms_of_answers(question: str, answer: str, gold: str, right: bool) -> None:
    assert (scored(question, answer, gold).value == 1.0) is right


@pytest.mark.parametrize(
    ("text", "gold", "right"),
    [
        (r"So it is $(\boxed{5}, \boxed{3})$.", "(5, 3)", True),
        (r"So it is $(\boxed{3}, \boxed{5})$.", "(5, 3)", False),
        (r"It is \boxed{5} doubled", "5", False),
        (r"It is $\boxed{5}$ times two.", "5", False),
        (r"It is $\boxed{5}$ and we are finished.", "5", True),
        ("<answer>Ann has 5 apples.</answer>", "5", True),
        ("<answer>Ann has 5 of 8 apples.</answer>", "5", False),
        ("<answer>The answer is 5.</answer>", "5", True),
    ],
)
def test_marks_and_the_words_next_to_them(text: str, gold: str, right: bool) -> None:
    rollout = rollout_of(text, gold)
    asked = [{"role": "user", "content": "Ann has apples. How many apples has she?"}]
    rollout = replace(rollout, prompt=replace(rollout.prompt, messages=asked))
    (score,) = correct.score_fn(CorrectOptions(answer="math"), None)([rollout])  # type: ignore[arg-type]
    assert isinstance(score, Score) and (score.value == 1.0) is right
