"""Sources of one table, mixed by weight."""

from __future__ import annotations

import polars as pl
import pytest

from posttrain.errors import DataError
from posttrain.pipeline.tables.mixing import mix_by_weight, rows_per_source
from posttrain.pipeline.tables.options import FileTable

ROWS = pl.DataFrame(
    {"id": [*list("fedcba"), "z"], "source": [0, 0, 0, 0, 1, 1, 1], "split": ["train"] * 6 + ["test"], "fixed": False},
    schema_overrides={"source": pl.UInt32},
)


def sources(*weights: float | None) -> list[FileTable]:
    return [FileTable(path=f"{nth}.jsonl", weight=weight) for nth, weight in enumerate(weights)]


def test_rows_per_source() -> None:
    assert rows_per_source([10, 4], [1, 2]) == [2, 4] and rows_per_source([10, 4], [1, 1]) == [4, 4]


def test_the_smallest_ids_are_used_and_sources_alternate() -> None:
    said: list[str] = []
    found = mix_by_weight(ROWS, sources(1.0, 1.0), "data.files.a", said.append)
    train = found.filter(split="train")
    assert sorted(train["id"]) == ["a", "b", "c", "d"] and train["source"].to_list() == [1, 0, 1, 0]
    assert found.filter(split="test")["id"].to_list() == ["z"]
    assert said[0] == "2 of 4 training rows of 0.jsonl used, 2 left (weight 1)"


def test_without_weights_all_rows_stay() -> None:
    assert mix_by_weight(ROWS, sources(None, None), "a", print) is ROWS


def test_a_source_of_which_nothing_is_used() -> None:
    with pytest.raises(DataError, match=r"with weight 0\.01, none of its 4 training rows of 0\.jsonl are used"):
        mix_by_weight(ROWS, sources(0.01, 1.0), "a", print)
