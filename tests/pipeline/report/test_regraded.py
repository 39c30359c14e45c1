"""The table of stored rollouts with other rewards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from posttrain.errors import DataError
from posttrain.pipeline.report.regraded import TITLE, read_regraded, regraded_cells, regraded_lines

RUNS = {"strict": {"rollouts": "online/grpo", "reward": {"correct": 1.0}}, "new": {"rollouts": "online/a"}}
TRAINED = {"grpo": {"reward": {"correct": {"answer": "math"}, "format": 0.2}}, "a": {}}
SETTINGS: dict[str, Any] = {"regrade": {"runs": RUNS}, "online": {"runs": TRAINED}}
FIGURES = {"rollouts": 1600, "reward": 0.25, "reward_before": 0.75, "raised": 0.1, "lowered": 0.6}


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("metrics/regrade").mkdir(parents=True)
    Path("metrics/regrade/strict.json").write_text(json.dumps(FIGURES))


def test_both_rewards_are_in_the_table() -> None:
    found = read_regraded(SETTINGS, ())
    named = {"run": "online/grpo", "rewards_before": "correct 1 (answer: math), format 0.2", "rewards": "correct 1.0"}
    assert found == {"strict": {**named, **FIGURES}}, "a run that has not finished is not shown"
    assert regraded_cells(found)[1] == [
        *("strict", "online/grpo", "correct 1 (answer: math), format 0.2", "0.750"),
        *("correct 1.0", "0.250", "10.0%", "60.0%", "1,600"),
    ]  # fmt: skip
    assert regraded_lines(found).startswith(TITLE) and regraded_lines({}) == ""
    assert read_regraded(SETTINGS, {"regrade/strict": "stale"}) == {} == read_regraded({}, ())


def test_rollouts_without_both_rewards() -> None:
    Path("metrics/regrade/new.json").write_text(json.dumps({**FIGURES, "rollouts": 8, "without_both": 0.25}))
    cells = regraded_cells(read_regraded(SETTINGS, ()))[2]
    assert cells[2] == "the default" and cells[-1] == "6 of 8"
    Path("metrics/regrade/new.json").write_text(json.dumps({"rollouts": 3, "without_both": 1.0}))
    assert regraded_cells(read_regraded(SETTINGS, ()))[2][3:] == ["-", "the default", "-", "-", "-", "0 of 3"]


def test_a_damaged_file_is_named() -> None:
    Path("metrics/regrade/strict.json").write_text('{"reward": "high"}')
    with pytest.raises(DataError, match="not a number: reward"):
        read_regraded(SETTINGS, ())
