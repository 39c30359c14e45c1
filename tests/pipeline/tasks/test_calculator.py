"""The task `calculator`: its tables, its tool and its metrics."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from posttrain.pipeline.toy_tasks.turns.arithmetic import calculate
from posttrain.pipeline.toy_tasks.turns.calculator import TASKS, WORDS, CalculatorParams, metrics, reply
from posttrain.tasks.step import Step
from tests.library.models.tiny import rollout_of

SIZES = {"demonstrations": 4, "heldout_demonstrations": 1, "prompts": 4, "heldout_prompts": 1, "test_prompts": 1}


def tables(**settings: Any) -> Any:
    generator = TASKS["calculator"].generator
    assert generator is not None
    return generator.tables(CalculatorParams(**SIZES, documents=20, heldout_documents=1, **settings))


def test_prompts_have_their_answers() -> None:
    for row in tables(operators=2)["prompts"].iter_rows(named=True):
        assert row["answer"] == str(calculate(row["problem"]))
        words = row["prompt"][0]["content"].removeprefix("What is ").removesuffix("?")
        for sign, word in WORDS.items():
            words = words.replace(f" {word} ", sign)
        assert words == row["problem"]


def test_demonstrations_call_the_tool_or_not() -> None:
    direct, called = (tables(direct_share=share)["chat"].row(0, named=True) for share in (1.0, 0.0))
    answer = f"#### {calculate(direct['problem'])}"
    assert [turn["content"] for turn in direct["messages"][1:]] == [answer]
    assert called["problem"] == direct["problem"]
    assert [turn["content"] for turn in called["messages"][1:]] == [f"calc {called['problem']}", answer[5:], answer]
    assert "calc " in tables(direct_share=1.0)["corpus"]["text"][0], "transcripts always call"


def test_reply() -> None:
    assert reply(rollout_of(" #### 4")) == Step(done=True)
    assert reply(rollout_of("calc 47*86")) == Step([{"role": "tool", "content": "4042"}], info={"calls": 1})
    failed = reply(replace(rollout_of("calc 1/0"), info={"calls": 1}))
    assert failed.messages[0]["content"].startswith("error: ") and failed.info == {"calls": 2, "call_errors": 1}


def test_metrics() -> None:
    called, failed = (replace(rollout_of(""), info=info) for info in ({"calls": 1}, {"calls": 2, "call_errors": 1}))
    found = metrics([called, failed, rollout_of(""), rollout_of("")], [1.0, 0.0, 1.0, 1.0])
    assert found == {"calling": 0.5, "right_given_call": 0.5, "call_errors": 0.25}
    assert metrics([rollout_of("")], [1.0])["right_given_call"] == 0.0
