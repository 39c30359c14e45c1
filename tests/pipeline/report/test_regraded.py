"""The table of stored rollouts with other rewards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from posttrain.errors import DataError
from posttrain.pipeline.report.regraded import TITLE, read_regraded, regraded_cells, regraded_lines

SETTINGS: dict[str, Any] = {
    "regrade": {"runs": {"strict": {"rollouts": "online/grpo"}, "new": {"rollouts": "online/a"}}}
}
FIGURES = {"rollouts": 1600, "reward": 0.25, "reward_before": 0.75, "raised": 0.1, "lowered": 0.6}


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("metrics/regrade").mkdir(parents=True)
    Path("metrics/regrade/strict.json").write_text(json.dumps(FIGURES))


def test_both_rewards_are_in_the_table() -> None:
    found = read_regraded(SETTINGS, ())
    assert found == {"strict": {"run": "online/grpo", **FIGURES}}, "a run that has not finished is not shown"
    assert regraded_cells(found)[1] == ["strict", "online/grpo", "0.750", "0.250", "10.0%", "60.0%", "1,600"]
    assert regraded_lines(found).startswith(TITLE) and regraded_lines({}) == ""
    assert read_regraded(SETTINGS, {"regrade/strict": "stale"}) == {} == read_regraded({}, ())


def test_rollouts_without_both_rewards() -> None:
    assert regraded_cells({"a": {"run": "online/a", "rollouts": 3}})[1] == ["a", "online/a", "-", "-", "-", "-", "3"]


def test_a_damaged_file_is_named() -> None:
    Path("metrics/regrade/strict.json").write_text('{"reward": "high"}')
    with pytest.raises(DataError, match="not a number: reward"):
        read_regraded(SETTINGS, ())
