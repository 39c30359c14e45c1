"""The problems of the toy tasks: what a right answer is, and what each instruction asks for."""

from __future__ import annotations

import random

import pytest

from posttrain.pipeline.toy_tasks.arithmetic.problems import (
    Range,
    draw_product,
    draw_sequence,
    draw_story,
    draw_sum,
)
from posttrain.pipeline.toy_tasks.instructions.problems import demonstration
from posttrain.pipeline.toy_tasks.instructions.problems import draw_problem as draw_instructions
from posttrain.pipeline.toy_tasks.programs.problems import Problem, draw_problem, flawed, steps
from posttrain.pipeline.toy_tasks.two_step.problems import (
    KIND_SHARES,
    PROBLEM_KINDS,
    Step,
    all_problems,
    by_kind,
    draw_distinct,
    draw_kind,
)
from posttrain.pipeline.toy_tasks.two_step.problems import Problem as TwoSteps
from posttrain.rewards.instruction_checks import followed, said

SIZE = Range(2, 4, 30)


@pytest.mark.parametrize("seed", range(20))
def test_arithmetic(seed: int) -> None:
    total = draw_sum(random.Random(seed), SIZE)
    written = total.key.removeprefix("sum:")
    assert eval(written) == total.answer and written in total.question
    assert total.working[-1].endswith(f"= {total.answer}") and len(total.working) == written.count(" ") // 2
    story = draw_story(random.Random(seed), SIZE)
    assert sum(map(int, story.key.rpartition(":")[2].split(","))) == story.answer
    assert story.question.endswith("have now?") and story.working[-1].endswith(f"= {story.answer}")
    product = draw_product(random.Random(seed), SIZE)
    left, right = map(int, product.key.removeprefix("product:").split(","))
    assert product.answer == left * right and product.working == (f"{left} * {right} = {left * right}",)
    sequence = draw_sequence(random.Random(seed), SIZE)
    shown = [int(number) for number in sequence.key.removeprefix("sequence:").split(", ")]
    step = shown[1] - shown[0]
    assert shown == list(range(shown[0], shown[0] + step * len(shown), step)) and sequence.answer == shown[-1] + step


@pytest.mark.parametrize("seed", range(40))
def test_instructions_have_a_text_that_follows_them(seed: int) -> None:
    rng = random.Random(seed)
    problem = draw_instructions(rng, 3)
    assert 1 <= len(problem.instructions) <= 3 and problem.topic in problem.key
    assert all(said(one) in problem.question for one in problem.instructions) and problem.topic in problem.question
    assert all(followed(one, demonstration(problem, rng)) for one in problem.instructions)


def test_programs_do_what_their_steps_say() -> None:
    every = {step.words: step for step in steps("list", 3)}
    assert len(every) == 4 + 3 * 2
    problem = Problem("list", (every["sort"], every["keep above 2"], every["times 3"]))
    assert problem([3, 1, 5]) == [9, 15] and problem.key == "list:sort; keep above 2; times 3"
    assert problem.question == "list x: sort; keep above 2; times 3"
    assert (
        problem.program == "def f(x):\n x = sorted(x)\n x = [y for y in x if y > 2]\n x = [y * 3 for y in x]\n return x"
    )
    words = {step.words: step for step in steps("text", 2)}
    assert Problem("text", (words["end with cat"],))("a") == "acat"


@pytest.mark.parametrize("seed", range(10))
def test_the_tests_of_a_program_accept_it_and_flawed_ones_differ_in_a_step(seed: int) -> None:
    rng = random.Random(seed)
    problem = draw_problem(rng, 2, 3, 5)
    assert 2 <= len(problem.steps) <= 3
    space: dict[str, object] = {}
    exec(f"{problem.program}\n{problem.tests()}", space)
    assert problem.tests().count("assert f(") == 4
    other = flawed(rng, problem, 5)
    differ = [a.words != b.words for a, b in zip(problem.steps, other.steps, strict=True)]
    assert sum(differ) == 1 and other.kind == problem.kind


def test_two_steps() -> None:
    assert [str(Step(6, sign, 3)) for sign in "+-*"] == ["6+3=9", "6-3=3", "6*3=18"]
    assert TwoSteps("a-b+c", (7, 3, 2)).steps == (Step(7, "-", 3), Step(4, "+", 2))
    more = TwoSteps("more", (7, 3))
    assert more.steps == (Step(7, "+", 3), Step(7, "+", 10)) and (more.answer, more.key) == (17, "more:7,3")
    assert TwoSteps("fewer", (7, 3)).answer == 11 and TwoSteps("k*m-c", (2, 3, 4)).answer == 2


def test_all_two_step_problems_are_within_their_range() -> None:
    found = list(all_problems(3, 6))
    assert len(found) == len(set(found)) and set(by_kind(found)) <= set(PROBLEM_KINDS)
    assert all(0 <= step.result <= 6 for problem in found for step in problem.steps)


def test_distinct_problems_are_drawn_by_share() -> None:
    pool = by_kind(all_problems(4, 12))
    drawn = draw_distinct(random.Random(0), pool, 30)
    assert len(set(drawn)) == 30
    rng = random.Random(1)
    counts = [draw_kind(rng, ["a+b+c", "more"]) for _ in range(2000)].count("more")
    assert counts / 2000 == pytest.approx(KIND_SHARES["more"] / (KIND_SHARES["more"] + KIND_SHARES["a+b+c"]), abs=0.03)
