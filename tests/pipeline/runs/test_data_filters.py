"""Rows are left out by the score of their answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from posttrain.data.columns import from_rows
from posttrain.errors import DataError
from posttrain.pipeline.runs.data_filters import _with_tools, filter_table, low_scored
from posttrain.pipeline.runs.scored_filter import ScoredFilterRun
from posttrain.pipeline.tables.store import read_table, write_table
from posttrain.settings.params import check

NAMES = {"data": "mine/chat", "against": "none", "reward_model": "none"}
WORDS = {"length": {"limit": 3, "unit": "words"}}


def chat(*answers: str, question: str = "a?") -> pl.DataFrame:
    rows = [
        {
            "problem": "p", "split": "train",
            "messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}],
        }
        for answer in answers
    ]  # fmt: skip
    return from_rows(rows, "chat")


def chosen(table: pl.DataFrame, **given: Any) -> tuple[list[str], str]:
    params = check(ScoredFilterRun, {**NAMES, "reward": WORDS, **given}, where="data.filters.a")
    listed, why = low_scored(table, "chat", params, "data.filters.a")
    return [name for name in table["id"] if name in listed["id"].to_list()], why


def test_rows_of_low_score_are_listed_with_the_reason() -> None:
    table = chat("one two", "one two three four five six seven eight nine")
    left_out, why = chosen(table, min_score=0.1)
    assert left_out == [table["id"][1]] and why == "a score below 0.1"
    assert chosen(table, min_score=-1.0) == ([], "none of low score")


def test_only_the_best_of_a_prompt_stay() -> None:
    table = chat("one two", "one two three four five six seven eight nine")
    assert chosen(table, best=1) == ([table["id"][1]], "not among the best 1 of the prompt")
    assert chosen(table, best=2) == ([], "none of low score")


def test_rows_with_tools_are_counted() -> None:
    table = chat("a", "b", "c")
    assert _with_tools(table) == 0
    used = table.with_columns(tools=pl.Series([None, "[]", None]), fields=pl.Series([None, None, "[]"]))
    assert _with_tools(used) == 2
    params = check(
        ScoredFilterRun, {**NAMES, "reward_model": "reward/a", "reward": {"model": 1.0}, "best": 1}, where="a"
    )
    with pytest.raises(DataError, match="2 of 3 rows use tools, which a reward model does not see"):
        low_scored(used, "chat", params, "data.filters.a")


def test_a_table_is_written_without_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_table(chat("one two", "one two three four five six"), Path("data/mine/chat.parquet"), "chat")
    run = "{data: mine/chat, against: none, reward_model: none, reward: {length: {limit: 3, unit: words}}, best: 1}"
    Path("params.yaml").write_text(f"data: {{filters: {{short: {run}}}}}\n")
    filter_table("short")
    assert read_table(Path("data/short/chat.parquet"), "chat")["messages"].list.last().struct["content"].to_list() == [
        "one two"
    ]
