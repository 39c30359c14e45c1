"""Rows are scored, and each score is printed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from posttrain.errors import ParamsError
from posttrain.pipeline.commands.reward.trial import reward_test


def test_rollouts_and_files_are_scored(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored = reward_test("length", "results/sft/rollouts.parquet", ["limit=99", "unit=words"], None, 2)
    assert stored.startswith("2 rows: 2 ok; mean ")
    rows = [{"prompt": "a", "completion": "one two"}, {"prompt": "b", "completion": "one"}]
    Path("mine").mkdir()
    Path("mine/a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    text = reward_test("length", "mine/a.jsonl", ["limit=4", "unit=words"], None, 9)
    assert text.startswith("2 rows: 2 ok; mean 0.625 of 2 scores") and capsys.readouterr().out
    with pytest.raises(ParamsError, match="-n = 0"):
        reward_test("length", "mine/a.jsonl", [], None, 0)
