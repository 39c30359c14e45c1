"""Held-out rows are capped by `heldout_rows`: the same ones each time, and all of a smaller table."""

from __future__ import annotations

import polars as pl
import pytest

from posttrain.data.columns import from_rows
from posttrain.pipeline.runs.typed import settings_of
from posttrain.train.heldout import HeldoutRows, rows_of

ROWS = [{"split": "heldout" if n % 3 else "train", "text": f"document {n}"} for n in range(90)]
TABLE = from_rows(ROWS, "corpus")


def test_the_same_rows_are_measured_whatever_their_order(capsys: pytest.CaptureFixture[str]) -> None:
    few = rows_of(TABLE, "heldout", HeldoutRows(heldout_rows=20))
    assert "measured on 20 of 60 held-out rows (heldout_rows)" in capsys.readouterr().out
    assert few.height == 20 and set(few["split"]) == {"heldout"}
    again = rows_of(TABLE.sort("text", descending=True), "heldout", HeldoutRows(heldout_rows=20))
    assert set(again["id"]) == set(few["id"]) and not again["id"].equals(few["id"])
    more = rows_of(TABLE, "heldout", HeldoutRows(heldout_rows=30))
    assert set(few["id"]) < set(more["id"])


def test_a_smaller_table_and_the_training_rows_are_whole(capsys: pytest.CaptureFixture[str]) -> None:
    assert rows_of(TABLE, "heldout", HeldoutRows()).equals(TABLE.filter(pl.col("split") == "heldout"))
    assert rows_of(TABLE, "train", HeldoutRows(heldout_rows=1)).height == 30
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("group", "own"),
    [
        ("sft.runs", {"start": "base/a", "data": "a/chat"}),
        ("reward.runs", {"start": "base/a", "data": "a/pairs", "feedback": "none", "demonstrations": "none"}),
        ("base.scratch", {"data": "a/corpus"}),
    ],
)
def test_every_stage_that_measures_held_out_rows_has_the_key(group: str, own: dict[str, str]) -> None:
    assert settings_of(group, own, f"{group}.a").heldout_rows == 1000
    assert settings_of(group, {**own, "heldout_rows": 5}, f"{group}.a").heldout_rows == 5
