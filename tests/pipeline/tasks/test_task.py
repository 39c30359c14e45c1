"""The toy tasks: their tables and their metrics."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import polars as pl
import pytest

from posttrain.errors import ParamsError
from posttrain.pipeline.toy_tasks.arithmetic.task import ArithmeticParams
from posttrain.pipeline.toy_tasks.instructions.task import InstructionsParams
from posttrain.pipeline.toy_tasks.programs.task import ProgramsParams
from posttrain.pipeline.toy_tasks.two_step.task import working
from posttrain.rewards.instruction_checks import followed
from posttrain.rollout import Prompt
from posttrain.tasks.task import PLAIN, TASKS, Task, load_task
from tests.library.models.tiny import rollout_of

SIZES = {"demonstrations": 6, "heldout_demonstrations": 2, "prompts": 5, "heldout_prompts": 2, "test_prompts": 3}


def tables(task: str, params: Any) -> dict[str, pl.DataFrame]:
    generator = TASKS[task].generator
    assert generator is not None
    found: dict[Any, pl.DataFrame] = generator.tables(params)
    counts = {kind: found[kind].group_by("split", maintain_order=True).len()["len"].to_list() for kind in found}
    assert counts["chat"] == [6, 2] and counts["prompts"] == [5, 2, 3]
    return found


@pytest.mark.parametrize("task", ["sums", "products", "sequences", "stories"])
def test_arithmetic(task: str) -> None:
    found = tables(task, ArithmeticParams(**SIZES, worked_share=1.0))
    for row in found["chat"].iter_rows(named=True):
        user, answer = row["messages"]
        assert (user["role"], answer["role"]) == ("user", "assistant") and user["content"]
        assert " = " in answer["content"] and ". The answer is " in answer["content"]
    row = found["prompts"].row(0, named=True)
    assert (row["info"], row["task"], row["prompt"][0]["role"]) == ("{}", "", "user") and row["answer"].isdigit()
    plain = tables(task, ArithmeticParams(**SIZES, worked_share=0.0))
    assert all(row[1]["content"].startswith("The answer is ") for row in plain["chat"]["messages"])


def test_instructions() -> None:
    found = tables("instructions", InstructionsParams(**SIZES))
    for row in found["prompts"].iter_rows(named=True):
        assert json.loads(row["info"])["instructions"] and row["answer"] == ""
    assert found["chat"]["messages"].list.len().unique().to_list() == [2]
    assert found["chat"]["messages"][0][1]["role"] == "assistant"


def test_the_share_of_instructions_that_are_followed() -> None:
    one, two = {"kind": "no_commas"}, {"kind": "uppercase"}
    prompt = Prompt("p", [], [], info={"instructions": [one, two]})
    rollout = replace(rollout_of("a b"), prompt=prompt)
    assert followed(one, "a b") and not followed(two, "a b")
    metrics = TASKS["instructions"].metrics
    assert metrics([rollout], [0.0]) == {"instructions_followed": 0.5} and metrics([rollout_of("a")], [0.0]) == {}


def test_programs() -> None:
    found = tables("programs", ProgramsParams(**SIZES, documents=20, heldout_documents=1, flawed_share=0.0))
    assert found["corpus"].height == 21 and found["corpus"]["text"][0].count("def f(x):") == 3
    for row in found["prompts"].iter_rows(named=True):
        info = json.loads(row["info"])
        space: dict[str, Any] = {}
        exec(f"{info['solution']}\n{info['tests']}", space)
        assert info["entry_point"] == "f"
    assert found["chat"]["messages"][0][1]["content"].startswith("def f(x):")
    right = {row[0]["content"]: row[1]["content"] for row in found["chat"]["messages"]}
    flawed = tables("programs", ProgramsParams(**SIZES, documents=20, heldout_documents=1, flawed_share=1.0))
    wrong = {row[0]["content"]: row[1]["content"] for row in flawed["chat"]["messages"]}
    assert right.keys() == wrong.keys() and all(right[asked] != wrong[asked] for asked in right)


@pytest.mark.parametrize("params", [ArithmeticParams, ProgramsParams])
def test_ranges_are_in_order(params: Any) -> None:
    assert params(fewest=3, most=3).most == 3
    with pytest.raises(ValueError, match=r"fewest \(4\) must be <= most \(3\)"):
        params(fewest=4, most=3)


def test_the_share_of_completions_with_working() -> None:
    rollouts = [rollout_of("1+1=2\n#### 2"), rollout_of("1+1=3\n#### 3"), rollout_of("#### 2"), rollout_of("")]
    assert working(rollouts, [1.0, 0.0, 1.0, 0.0]) == {"working": 0.5, "right_given_working": 0.5}
    assert working([rollout_of("2")], [1.0]) == {"working": 0.0, "right_given_working": 0.0}
    generator = TASKS["two_step"].generator
    assert generator is not None
    sizes = {
        "n_corpus": 20,
        "n_corpus_heldout": 1,
        "n_sft": 3,
        "n_sft_heldout": 1,
        "n_rl": 4,
        "n_heldout": 1,
        "n_test": 1,
    }
    assert {kind: frame.height for kind, frame in generator.tables(generator.params(**sizes)).items()} == {
        "corpus": 21, "chat": 4, "prompts": 6,
    }  # fmt: skip


def test_tasks_by_name() -> None:
    assert load_task("") is PLAIN and load_task("sums") is TASKS["sums"]
    assert PLAIN.has_turns is False and Task(reply=lambda rollout: None).has_turns is True
    assert PLAIN.reply(rollout_of("")) is None and PLAIN.metrics([], []) == {}
    with pytest.raises(ParamsError, match="'summs' is not a task"):
        load_task("summs")
