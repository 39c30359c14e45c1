"""The tables of a run are checked, counted and written, or none is."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from posttrain.data.columns import Tables, from_rows
from posttrain.errors import PosttrainError
from posttrain.pipeline.tables.prepare import prepare, summary
from posttrain.pipeline.tables.store import read_table


def prompts(*splits: str) -> pl.DataFrame:
    rows = [
        {
            "prompt": [{"role": "user", "content": f"{nth}+1?"}], "answer": str(nth + 1), "problem": str(nth),
            "split": split, "task": "", "info": "{}",
        }
        for nth, split in enumerate(splits)
    ]  # fmt: skip
    return from_rows(rows, "prompts")


def test_counts_are_aligned() -> None:
    tables: Tables = {"prompts": prompts("train", "train", "test"), "corpus": prompts("heldout")}
    assert summary(tables).splitlines() == [
        "table          train   heldout      test",
        "prompts            2         -         1",
        "corpus             -         1         -",
    ]
    assert summary({"prompts": pl.DataFrame({"split": ["test"] * 1200})}).endswith("     1,200")


def test_tables_are_written_or_none_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text("evaluate: {settings: {data: mine/prompts}, policies: {a: sft/a}}\n")
    with pytest.raises(PosttrainError, match="test"):
        prepare("mine", lambda _: {"prompts": prompts("train", "heldout")})
    assert not Path("data").exists()
    Path("params.yaml").write_text("format: 2\n")
    prepare("mine", lambda _: {"prompts": prompts("train", "test")})
    assert read_table(Path("data/mine/prompts.parquet"), "prompts").height == 2
    assert capsys.readouterr().out.splitlines()[1].split() == ["prompts", "1", "-", "1"]
