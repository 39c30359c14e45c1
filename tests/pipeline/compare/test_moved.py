"""Completions that two evaluations share, with other scores."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import polars as pl

from posttrain.pipeline.compare.moved import Moved, MovedRow, digest_of, moved, moved_lines, scored_rows


def table(*rewards: float | None, ids: str = "abc", text: str | None = "so #### 5") -> pl.DataFrame:
    asked = [[{"role": "user", "content": f"question {name}"}] if text else None for name in ids]
    return pl.DataFrame(
        {
            "id": list(ids), "prompt_id": list(ids), "problem": [f"question {name}" for name in ids], "prompt": asked,
            "sample": [0] * len(ids), "greedy": [False] * len(ids), "completion": [text] * len(ids),
            "completion_ids": [[5, ord(name)] if text else None for name in ids], "reward": rewards,
        },
        schema_overrides={
            "reward": pl.Float64, "completion": pl.String, "completion_ids": pl.List(pl.Int64),
            "prompt": pl.List(pl.Struct({"role": pl.String, "content": pl.String})),
        },
    )  # fmt: skip


def policy(name: str, rows: pl.DataFrame, label: str = "grpo") -> Any:
    return SimpleNamespace(name=name, policy=label, metric="", rows=scored_rows(rows))


def test_rows_whose_score_moved() -> None:
    before, now = policy("HEAD", table(0.0, 1.0, None)), policy("workspace", table(1.0, 1.0 + 1e-9, 0.5))
    (found,) = moved([before, now])
    assert (found.left, found.right, found.shared) == ("HEAD", "workspace", 3)
    assert found.rows == [
        MovedRow("a", "question a", "so #### 5", 0.0, 1.0), MovedRow("c", "question c", "so #### 5", None, 0.5)
    ]  # fmt: skip


def test_only_shared_completions_count_whatever_the_policy_is_called() -> None:
    one, same = table(0.0, 1.0, 1.0), table(0.0, 1.0, 1.0)
    assert moved([policy("a", one), policy("b", same)]) == []
    (other,) = moved([policy("a", one), policy("b", table(1.0, 0.0, 0.0), "dpo")])
    assert [row.id for row in other.rows] == ["a", "b", "c"]
    (found,) = moved([policy("a", one), policy("b", table(1.0, 1.0, ids="ax"))])
    assert found.shared == 1 and [row.id for row in found.rows] == ["a"]
    of_metric = policy("b", table(1.0, 0.0, 0.0))
    of_metric.metric = "format"
    assert moved([policy("a", one), of_metric]) == []


def test_the_digest_says_whether_the_completions_are_the_same() -> None:
    one = scored_rows(table(0.0, 1.0, 1.0))
    assert digest_of(one) == digest_of(one.reverse()) != digest_of(one.head(2))
    assert digest_of(scored_rows(pl.DataFrame({"reward": [1.0]}))) == "", "lm-eval's documents have no completions"


def test_long_lists_are_cut_and_text_that_is_not_stored_is_empty() -> None:
    rows = [MovedRow(f"row{nth}", "q" * 99, "", 0.0, None) for nth in range(12)]
    (text,) = moved_lines([Moved("HEAD", "workspace", 40, rows)])
    lines = text.splitlines()
    assert lines[0] == "12 of 40 completions that HEAD and workspace share have another score"
    assert "no score" in lines[2] and "(2 more: --json lists all" in lines[-1] and len(lines) == 13
    assert scored_rows(table(1.0, ids="a", text=None))["ends"].to_list() == [""]
