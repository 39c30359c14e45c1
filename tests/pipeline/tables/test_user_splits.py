"""Which split the user's rows belong to."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from posttrain.data.columns import Kind
from posttrain.errors import DataError
from posttrain.pipeline.tables.conversion import ConvertedRows
from posttrain.pipeline.tables.user_splits import (
    Notes,
    SplitOptions,
    agreeing,
    assign_source_splits,
    assign_splits,
    rows_text,
    select_parts,
    split_shares,
)

PLAIN = SplitOptions()


def rows(*splits: str, **columns: Any) -> pl.DataFrame:
    problems = [f"p{nth}" for nth in range(len(splits))]
    frame = {"split": splits, "problem": problems, "fixed": True, "file": "f", "line": range(len(splits)), **columns}
    return pl.DataFrame(frame)


def test_parts_that_are_used() -> None:
    said: list[str] = []
    parts: Any = {"train": [1], "validation": [2], "extra": [3]}
    assert list(select_parts(parts, PLAIN, "chat", "here", said.append, alone=True)) == ["train", "validation"]
    assert said == ["not read: extra; name them under `splits` if they are splits"]
    one: Any = {"extra": [1]}
    assert select_parts(one, PLAIN, "chat", "here", said.append, alone=True) is one
    with pytest.raises(DataError, match="the source has no split named train"):
        select_parts({"a": [], "b": []}, PLAIN, "chat", "here", said.append, alone=True)
    with pytest.raises(DataError, match="split 'x' not found"):
        select_parts(parts, SplitOptions(splits={"train": "x"}), "chat", "here", said.append, alone=True)


def test_splits_of_files_and_of_rows() -> None:
    frame = rows("", "").with_columns(source=pl.lit("validation"), given=pl.lit(None, pl.String)).drop("split")
    named = assign_source_splits(
        ConvertedRows(frame, [], False), ["train", "validation"], PLAIN, "chat", "a", alone=True
    )
    assert named["split"].to_list() == ["heldout", "heldout"]
    given = frame.with_columns(given=pl.Series(["train", "odd"]))
    read = ConvertedRows(given, [], False)
    assert assign_source_splits(read, ["train"], PLAIN, "chat", "a", alone=True)["split"].to_list() == ["train"]
    assert read.refused[0].reason.startswith("split = 'odd' is not one of train")
    with pytest.raises(DataError, match="the source already has the splits"):
        assign_source_splits(ConvertedRows(given, [], False), ["train", "test"], PLAIN, "chat", "a", alone=True)


@pytest.mark.parametrize(
    ("own", "kind", "tested", "shares"),
    [
        ({"train"}, "prompts", False, (0.05, 0.05)), ({"train", "heldout"}, "prompts", False, (0.0, 0.05)),
        ({"train", "test"}, "prompts", False, (0.05, 0.0)), ({"train", "test"}, "chat", False, (0.0, 0.0)),
        ({"train"}, "chat", True, (0.05, 0.0)), ({"train"}, "corpus", False, (0.05, 0.0)),
    ],
)  # fmt: skip
def test_split_shares(own: set[str], kind: Kind, tested: bool, shares: tuple[float, float]) -> None:
    assert tuple(split_shares(own, PLAIN, kind, tested=tested).values()) == shares


def test_test_rows_of_a_table_without_them() -> None:
    said: list[str] = []
    none = SplitOptions(heldout_share=0.0, test_share=0.0)
    moved = assign_splits(rows("train", "test"), none, "chat", said.append, tested=False)
    assert moved["split"].to_list() == ["train", "heldout"] and "are now held-out" in said[0]
    left = assign_splits(rows("train", "test", "heldout"), none, "chat", said.append, tested=False)
    assert left["split"].to_list() == ["train", "heldout"] and "1 row of the test split left out" in said[1]


def test_problems_are_in_one_split_of_all_tables() -> None:
    said: list[tuple[str, str]] = []
    chat = rows("train", "train").with_columns(fixed=pl.lit(False))
    prompts = rows("test", "train")
    found, wrong = agreeing({"chat": chat, "prompts": prompts}, (), lambda kind, line: said.append((kind, line)))
    assert found["chat"]["problem"].to_list() == ["p1"] and found["prompts"]["split"].to_list() == ["test", "train"]
    assert wrong.is_empty() and said[0][0] == "chat" and "left out: their problems are in the split test" in said[0][1]
    both, odd = agreeing({"chat": rows("train"), "prompts": rows("test")}, (), lambda kind, line: None)
    assert (
        odd.select("kind", "split", "agreed split").rows() == [("chat", "train", "test")] and both["chat"].height == 1
    )


def test_notes() -> None:
    said: list[str] = []
    notes = Notes("here", said.append)
    notes("a line")
    assert said == ["here: a line"] and notes.lines == ["a line"]
    assert rows_text(1) == "1 row" and rows_text(2000) == "2,000 rows"
