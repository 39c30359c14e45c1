"""The two-step problems as text."""

from __future__ import annotations

import random
import re

import pytest

from posttrain.pipeline.toy_tasks.two_step.problems import PROBLEM_KINDS, Problem, Step
from posttrain.pipeline.toy_tasks.two_step.text import (
    chained_document,
    demonstration,
    headed,
    narrated_document,
    question,
    terse_document,
    worked_document,
)

PROBLEM = Problem("a+b-c", (5, 6, 7))


@pytest.mark.parametrize("kind", PROBLEM_KINDS)
def test_questions_have_the_numbers_in_order(kind: str) -> None:
    numbers = (9, 5, 4)[: 2 if kind in ("more", "fewer") else 3]
    asked = question(random.Random(0), Problem(kind, numbers))  # type: ignore[arg-type]
    assert tuple(map(int, re.findall(r"\d+", asked))) == numbers and asked.endswith("?")


def test_demonstrations() -> None:
    rng = random.Random(0)
    assert demonstration(rng, PROBLEM, terse_share=0.0, unmarked_share=0.0) == "5+6=11\n11-7=4\n#### 4"
    assert demonstration(rng, PROBLEM, terse_share=1.0, unmarked_share=1.0) == "4"


@pytest.mark.parametrize("seed", range(8))
def test_documents(seed: int) -> None:
    worked, terse = (make(random.Random(seed), PROBLEM) for make in (worked_document, terse_document))
    asked = question(random.Random(seed), PROBLEM)
    assert asked in worked and "5+6=11" in worked and "11-7=4" in worked and not worked.endswith("####")
    assert asked in terse and re.search(r"4$", terse) and "=" not in terse
    step = Step(5, "*" if seed % 2 else "-", 4)
    narrated = narrated_document(random.Random(seed), step)
    assert narrated.endswith(str(step)) and [int(n) for n in re.findall(r"\d+", narrated)][:2] == [5, 4]


def test_chains_and_headings() -> None:
    assert chained_document(list(PROBLEM.steps)) == "5+6=11\n11-7=4"
    assert headed(random.Random(0), "text", 0.0) == "text"
    assert re.fullmatch(r"#### (Exercise|Problem|Question) \d+\ntext", headed(random.Random(0), "text", 1.0))
