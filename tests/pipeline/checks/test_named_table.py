"""The table that a command names."""

from __future__ import annotations

from pathlib import Path

import pytest

from posttrain.errors import DataError
from posttrain.pipeline.checks.named_table import table_file

TEXT = "data: {tasks: {sums: {task: sums}}}\nevaluate: {policies: {a: sft/a}}\n"


def test_table_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data/mine").mkdir(parents=True)
    Path("data/mine/chat.parquet").write_text("")
    Path("own.jsonl").write_text("")
    assert table_file("mine/chat") == Path("data/mine/chat.parquet") and table_file("own.jsonl") == Path("own.jsonl")
    with pytest.raises(DataError, match=r"no such table.*Give a file \(\.parquet"):
        table_file("x/chat")
    Path("params.yaml").write_text(TEXT)
    with pytest.raises(DataError, match="Make it: dvc repro data_tasks@sums"):
        table_file("data/sums/prompts.parquet")
    with pytest.raises(DataError, match="Make it: dvc repro evaluate@a"):
        table_file("results/a/rollouts.parquet")
    with pytest.raises(DataError, match="Did you mean 'sums/prompts'"):
        table_file("sums/prompt")
