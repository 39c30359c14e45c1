"""The reward `correct`: its options, its statuses, and its examples."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from posttrain.errors import ParamsError
from posttrain.rewards.catalog import REWARDS, Rewards
from posttrain.rewards.correct import CorrectOptions, correct
from posttrain.rollout import Prompt, Score
from posttrain.settings.params import Params, check
from tests.library.models.tiny import rollout_of

KINDS: list[tuple[dict[str, Any], str]] = [
    ({}, "1,234"),
    ({"after": "####"}, "48 / 2 = 24\n#### 24"),
    ({"answer": "math"}, r"\frac{\sqrt{2}}{2}"),
    ({"answer": "math"}, r"\{1, 2\}"),
    ({"answer": "math", "form": "hashes"}, "[1, 2)"),
    ({"answer": "math", "form": "answer_is"}, "5 cm"),
    ({"answer": "math", "form": "tags"}, "x^2+1"),
    ({"answer": "math", "form": "whole"}, "25%"),
    ({"answer": "math", "after": "=>"}, "no solution"),
    ({"answer": "choice"}, "B"),
    ({"answer": "choice", "choices": "ABCDE", "form": "boxed"}, "(e)"),
    ({"answer": "exact"}, "def f(): pass"),
]


class Settings(Params):
    reward: Rewards


def score(options: CorrectOptions, text: str, answer: str) -> Score:
    (found,) = correct.score_fn(options, None)([rollout_of(text, answer)])  # type: ignore[arg-type]
    assert isinstance(found, Score)
    return found


@pytest.mark.parametrize(("given", "answer"), KINDS)
def test_examples_score_what_they_promise(given: dict[str, Any], answer: str) -> None:
    options = CorrectOptions(**given)
    prompt = Prompt("p", [], [], answer)
    assert correct.cannot_score(prompt, options) is None
    examples = correct.examples(prompt, options)
    assert examples.right and examples.wrong
    assert [score(options, one, answer).value for one in examples.right] == [1.0] * len(examples.right)
    assert [score(options, one, answer).value for one in examples.wrong] == [0.0] * len(examples.wrong)


@pytest.mark.parametrize(
    ("given", "text", "answer", "value", "status"),
    [
        ({"answer": "exact"}, " Paris\n", "Paris", 1.0, "ok"),
        ({"answer": "exact"}, "paris", "Paris", 0.0, "ok"),
        ({"answer": "exact", "after": "=>"}, "Paris", "Paris", 0.0, "unparseable"),
        ({"answer": "regex", "pattern": r"city: (\w+)"}, "city: Rome, city: Paris", "Paris", 1.0, "ok"),
        ({"answer": "regex", "pattern": r"city: (\w+)"}, "Paris", "Paris", 0.0, "unparseable"),
        ({"answer": "regex", "pattern": r"[0-9]+"}, "1 then 22", "22", 1.0, "ok"),
        ({"answer": "choice"}, "The answer is (B).", "B", 1.0, "ok"),
        ({"answer": "choice"}, "A or B", "B", 0.0, "unparseable"),
        ({"answer": "choice"}, "The answer is B. However, C is close, but too large.", "B", 1.0, "ok"),
        ({"answer": "choice"}, r"\boxed{C}, \boxed{A}", "A, C", 1.0, "ok"),
        ({"answer": "choice"}, "The answer is A.", "A, C", 0.0, "ok"),
        ({"answer": "choice"}, "So it must be B", "B", 0.0, "unparseable"),
        ({"answer": "choice", "unmarked": True}, "So it must be B", "B", 1.0, "ok"),
        ({"answer": "math"}, "So it is 1/2", "1/2", 0.0, "unparseable"),
        ({"answer": "math", "unmarked": True}, "So it is 1/2", "1/2", 1.0, "ok"),
        ({"answer": "math"}, r"\boxed{0.5}", "1/2", 1.0, "ok"),
        ({"answer": "math"}, r"\boxed{0.6}", "1/2", 0.0, "ok"),
        ({"answer": "math"}, r"\boxed{\int x}", "1/2", 0.0, "unparseable"),
        ({"answer": "math", "after": "=>"}, "=> 1\nso => 0.5.", "1/2", 1.0, "ok"),
        ({"answer": "math"}, "", "1/2", 0.0, "unparseable"),
        ({"answer": "math"}, r"\boxed{3} and \boxed{5}", r"$\boxed{3}$ and $\boxed{5}$", 1.0, "ok"),
        ({"answer": "math"}, r"\boxed{5, 3}", r"\boxed{3}, \boxed{5}", 1.0, "ok"),
        ({"answer": "math"}, r"\boxed{5}", r"$\boxed{3}$ and $\boxed{5}$", 0.0, "ok"),
        ({"answer": "math"}, r"\boxed{5}", "First \\boxed{3}.\n\nThen we see that it is \\boxed{5}", 1.0, "ok"),
        ({"answer": "math"}, r"\boxed{14700}", r"14,\! 700", 1.0, "ok"),
        ({"answer": "math"}, r"\boxed{700}", r"14,\! 700", 0.0, "ok"),
    ],
)
def test_each_answer_type(given: dict[str, Any], text: str, answer: str, value: float, status: str) -> None:
    found = score(CorrectOptions(**given), text, answer)
    assert (found.value, found.status) == (value, status)
    assert bool(found.reason) == (status != "ok")


@pytest.mark.parametrize(
    ("given", "answer", "why"),
    [
        ({"answer": "math"}, r"\int_0^1 x dx", "int"),
        ({"answer": "math"}, " ", "empty"),
        ({"answer": "math"}, r"so it is \boxed{3", "a box without an end"),
        ({"answer": "choice"}, "E", "none of the choices ABCD"),
        ({"answer": "exact"}, "", "empty"),
        ({}, "1/2", "a fraction"),
    ],
)
def test_answers_that_it_cannot_read_are_named(given: dict[str, Any], answer: str, why: str) -> None:
    prompt, options = Prompt("p", [], [], answer), CorrectOptions(**given)
    assert why in (correct.cannot_score(prompt, options) or "")
    assert not correct.examples(prompt, options).right


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"answer": "maths"}, "correct.answer"),
        ({"answer": "regex"}, "needs a pattern"),
        ({"answer": "regex", "pattern": "("}, "not a regular expression"),
        ({"answer": "regex", "pattern": "(a)(b)"}, "has 2 groups"),
        ({"unmarked": True}, "unmarked is an option of answer: math and choice"),
        ({"form": "boxed"}, "form is an option of answer: math and choice"),
        ({"answer": "math", "choices": "AB"}, "choices is an option of answer: choice"),
        ({"answer": "math", "forms": "boxed"}, "correct.forms: unknown key"),
    ],
)
def test_wrong_options_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ParamsError) as caught:
        check(Settings, {"reward": {"correct": given}}, where="online.runs.a")
    assert said in str(caught.value)


def test_examples_are_made_of_the_gold_answers_own_text() -> None:
    question = "Solve $x^2 - 9 = 0$."
    prompt = Prompt("p", [{"role": "user", "content": question}], [], "3, -3")
    examples = correct.examples(prompt, CorrectOptions(answer="math"))
    assert examples.right == [r"\boxed{3, -3}"]
    answers = ["4, -3", "987654321", "3, -3 or 987654321", "3", question, "x^2 - 9 = 0"]
    assert examples.wrong == [rf"\boxed{{{answer}}}" for answer in answers]
    solution = "9 + 9 = 18\n#### 18"
    examples = correct.examples(replace(prompt, answer=solution), CorrectOptions(answer="math"))
    assert (examples.right, examples.wrong) == ([solution], [r"\boxed{987654321}"])


def test_what_a_completion_causes_in_the_parser_is_wrong_and_not_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> bool:
        raise RecursionError

    monkeypatch.setattr("posttrain.rewards.answer_kinds.math.same_answer", failing)
    found = score(CorrectOptions(answer="math"), r"\boxed{2}", "1")
    assert found == Score(0.0, "unparseable", "reading it raised RecursionError")


def test_the_parser_is_loaded_by_the_runs_that_use_it() -> None:
    code = (
        "import sys, posttrain.rewards.correct; print(*(n for n in sys.modules if n.startswith('posttrain.answers.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not done.stdout.split()


def test_it_runs_where_it_can_be_stopped() -> None:
    reward = REWARDS["correct"]
    assert not reward.shaping
    assert reward.in_workers(CorrectOptions(answer="math")) and not reward.in_workers(CorrectOptions())
    assert REWARDS["format"].shaping


def test_a_pattern_sees_the_mark_that_a_task_sets() -> None:
    options = CorrectOptions(answer="regex", pattern="#### ([0-9]+)", after="####")
    (score,) = correct.score_fn(options, None)([rollout_of("4 + 2 = 6\n#### 6", "so\n#### 6")])  # type: ignore[arg-type]
    assert score == Score(1.0, answer="6")
