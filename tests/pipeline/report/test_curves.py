"""Learning curves of the page and of DVC's plots."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from posttrain.pipeline.report.curves import curves, curves_csv, evaluations, thinned


@pytest.fixture(autouse=True)
def _workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plots").mkdir()
    Path("metrics").mkdir()
    lines = ["step,reward,heldout_true,heldout_true_low,heldout_true_high", "1,0.5,,,", "2,1.5,0.4,0.3,0.5"]
    Path("plots/a.csv").write_text("\n".join(lines) + "\n")
    Path("metrics/a.json").write_text(json.dumps({"best_step": 2, "reward": 1.0}))


def test_thinned() -> None:
    found, each = thinned({"step": [1.0, 2.0, 3.0], "x": [1.0, None, 2.0], "y": [None, None, None]}, 2)
    assert (found, each) == ({"step": [1.5, 3.0], "x": [1.0, 2.0], "y": [None, None]}, 2)
    assert thinned({}, 5) == ({}, 1)


def test_curves_and_their_table() -> None:
    found = curves([("a", "A"), ("missing", "B")], 10)
    assert [(curve["label"], curve["path"], curve["each"]) for curve in found] == [("A", "a", 1)]
    assert found[0]["columns"]["reward"] == [0.5, 1.5]
    table = curves_csv([*found, {"label": "B", "columns": {"step": [1], "reward_x": [3], "loss": [2]}}], ["B", "A"])
    assert table.splitlines() == [
        "metric,run,step,value", "reward_x,B,1,3", "loss,B,1,2", "reward,A,1,0.5", "reward,A,2,1.5",
        "heldout_true,A,2,0.4",
    ]  # fmt: skip


def test_evaluations() -> None:
    points = [{"x": 2.0, "y": 0.4, "low": 0.3, "high": 0.5}]
    measured = [{"name": "true", "sign": 1, "points": points}]
    assert evaluations([("a", "A"), ("b", "B")]) == [{"label": "A", "path": "a", "measured": measured, "best_step": 2}]
