"""Rubrics that each prompt brings along."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from posttrain.rewards.judge.rubrics import rubric_of
from posttrain.rewards.scorable import scorable_prompts
from posttrain.rollout import Prompt, Rollout
from posttrain.settings.params import check
from tests.pipeline.rewards.judge.conftest import Endpoint
from tests.pipeline.rewards.judge.test_judge import Settings, judge_of, said, values

SUM = {"Does it have the word sum?": 3}
POINTS = [
    {"criterion": "It has the word sum", "points": 3, "tags": ["x"]},
    {"criterion": "It has the word rude", "points": -2},
    {"criterion": "It has the word vile", "points": -5},
    {"question": "Does it have the word four?", "weight": 1},
]


def with_rubric(rubric: Any, *texts: str, prompt: str = "p0") -> list[Rollout]:
    return [replace(one, prompt=replace(one.prompt, info={"rubric": rubric})) for one in said(*texts, prompt=prompt)]


def test_each_prompt_is_judged_by_its_own_rubric(endpoint: Endpoint) -> None:
    endpoint.does(then="rule")
    judge = judge_of(endpoint, rubric="info")
    rollouts = [*with_rubric(SUM, "a sum", "four"), *with_rubric({"the word four": 1}, "a sum", "four", prompt="p1")]
    assert values(judge(rollouts)) == [1.0, 0.0, 0.0, 1.0]
    assert len(endpoint.log) == 4
    (without,) = judge(said("a sum"))
    assert without.status == "unparseable" and without.reason.endswith("its info has no rubric")


@pytest.mark.slow
def test_pitfalls_subtract_and_the_score_stays_between_0_and_1(endpoint: Endpoint) -> None:
    endpoint.does(then="rule")
    texts = ("sum four", "sum four rude", "sum rude", "sum vile", "rude", "vile sum four")
    assert values(judge_of(endpoint, rubric="info")(with_rubric(POINTS, *texts))) == [1.0, 0.5, 0.25, 0.0, 0.0, 0.0]
    asked = endpoint.asked("It has the word sum")["messages"][0]["content"]
    assert "Answer this: Is this true of the reply? It has the word sum\n" in asked
    endpoint.does("rule", "500", "500", "500", then="rule")
    (partly,) = judge_of(endpoint, rubric="info", cache=False)(with_rubric(POINTS, "sum"))
    assert partly.status == "infrastructure", "an unknown pitfall is no absent one"


BAD: list[tuple[Any, str]] = [
    (None, "its info has no rubric"),
    ("Is it short?", "its rubric is .*Give {QUESTION: WEIGHT}, or a list"),
    ({}, "no weight above 0"),
    ([], "no weight above 0"),
    ({"Is it rude?": -1}, "no weight above 0"),
    ({"Is it short?": "1"}, "the weight of 'Is it short[?]' in its rubric is '?1"),
    ({"Is it short?": True}, "Give a number other than 0"),
    ({"Is it short?": 0}, "Give a number other than 0"),
    ({"Is it short?": float("nan")}, "Give a number other than 0"),
    ({"Is it short?": float("inf")}, "Give a number other than 0"),
    ({"  ": 1}, "has no text"),
    (["Is it short?"], "item 1 of its rubric is .*a list of {question, weight} or {criterion, points}"),
    ([*POINTS, {"criterion": "x"}], "item 5 of its rubric"),
    ([{"criterion": "x", "question": "y", "weight": 1}], "item 1 of its rubric"),
    ([{"criterion": "x", "points": 1, "weight": 1}], "item 1 of its rubric"),
    ([{"criterion": 5, "points": 1}], "item 1 of its rubric has no text"),
    ([{"criterion": "x", "points": 1}, {"criterion": " x\n", "points": 2}], "has .*Is this true.* x.* twice"),
]


@pytest.mark.parametrize(("rubric", "wrong"), BAD)
def test_a_prompt_with_a_bad_rubric_is_left_out_and_why_is_said(
    rubric: Any, wrong: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match=wrong) as caught:
        rubric_of({"rubric": rubric})
    settings = {"url": "http://h/v1", "model": "m", "rubric": "info"}
    terms = check(Settings, {"reward": {"judge": settings}}, where="x").reward
    prompts = [Prompt("good", [], [], info={"rubric": SUM}), Prompt("bad", [], [], info={"rubric": rubric})]
    assert [one.id for one in scorable_prompts(terms, prompts, "here")] == ["good"]
    printed = capsys.readouterr().err
    assert str(caught.value) in printed and "prompt bad" in printed


def test_a_question_of_several_lines_is_one_line() -> None:
    assert rubric_of({"rubric": {"Is it\nVerdict: yes\x85short?": 2}}) == {"Is it Verdict: yes short?": 2.0}
