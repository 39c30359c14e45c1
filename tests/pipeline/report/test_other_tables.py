"""Evaluations on tables of their own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from posttrain.pipeline.params.params_file import read
from posttrain.pipeline.report import other_tables as module
from posttrain.pipeline.report.other_tables import OtherTable, as_cells, as_lines, other_tables
from posttrain.pipeline.report.policies import Policy
from tests.pipeline.report import workspace

RUNS = """  runs:
    a: {policy: sft/main, data: mine/prompts}
    b: {policy: preference/dpo, data: mine/prompts}
    c: {policy: online/grpo, data: mine/prompts, samples: 2, sampling: {temperature: 0.5}}
    late: {policy: online/grpo, data: mine/prompts}
    gone: {policy: online/grpo, data: mine/chat, by: likelihood}
"""


@pytest.fixture
def tables(finished: Path) -> tuple[list[OtherTable], dict[str, str]]:
    with (finished / "params.yaml").open("a") as file:
        file.write(RUNS)
    for policy, label in (("sft", "a"), ("dpo", "b"), ("grpo", "c")):
        workspace.copy_results(policy, label)
    return other_tables(read(), {"late": "not run yet"})


def test_evaluations_are_grouped_by_table_and_meaning(tables: tuple[list[OtherTable], dict[str, str]]) -> None:
    found, errors = tables
    assert errors.keys() == {"late", "gone"} and errors["late"] == "not run yet"
    assert [(table.reference, dict(table.names)) for table in found] == [
        ("sft", {"a": "sft", "b": "dpo"}), ("grpo", {"c": "grpo"}),
    ]  # fmt: skip
    assert [table.name.startswith("mine/prompts") for table in found] == [True, True]
    assert "sampling.temperature=0.5" in found[1].name
    mean = {
        policy: np.mean([workspace.right(policy, prompt, 0) / 2 for prompt in range(30)]) for policy in ("sft", "dpo")
    }
    first, second = found[0].rows
    assert (first["policy"], first["run"], first["score"], "gain" in first) == ("sft", "a", 0.3, False)
    assert second["gain"] == pytest.approx(mean["dpo"] - mean["sft"])


def test_a_table_as_text(tables: tuple[list[OtherTable], dict[str, str]]) -> None:
    first = tables[0][0]
    titles, sft, dpo = as_cells(first)
    assert titles[:3] == ["policy", "score [95 % interval]", "difference to sft"] and "working" in titles
    assert sft[:3] == ["sft", "0.300 [0.250, 0.350]", "-"]
    assert dpo[1] == "0.640 [0.600, 0.700]" and dpo[2].startswith("+0.083 [")
    assert as_lines([first])[0].splitlines()[0] == first.name


def test_names_and_intervals() -> None:
    assert (
        module._named("reward_brief") == "brief"
        and module._named("score_x") == "x"
        and module._named("length") == "length"
    )
    assert module._with_interval(0.5, 0.25, 0.75) == "0.500 [0.250, 0.750]"
    assert module._with_interval(0.5, -0.25, 0.75, sign="+") == "+0.500 [-0.250, +0.750]"


def test_runs_that_measure_otherwise_have_titles_of_their_own() -> None:
    one, two = (Policy(label, f"sft/{label}", {}, pl.DataFrame()) for label in "ab")
    assert module._alike("t", [({"n": "1"}, one), ({"n": "1"}, two)]) == {"t": [one, two]}
    assert module._alike("t", [({"n": "1"}, one), ({"n": "2"}, two)]) == {"t, n=1": [one], "t, n=2": [two]}


def test_the_meaning_of_a_score() -> None:
    flat = {"evaluate.runs.a.data": "mine/chat", "evaluate.runs.a.by": "likelihood", "evaluate.runs.a.x": "1"}
    assert module._meaning("a", {"data": "mine/chat"}, flat) == {"x": "1", "split": "heldout"}
    assert module._meaning("a", {"data": "mine/prompts"}, flat)["split"] == "test"
    assert module._meaning("a", {"data": "mine/prompts", "split": "train"}, flat)["split"] == "train"
