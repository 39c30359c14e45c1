"""The tables of the page that need no script."""

from __future__ import annotations

from posttrain.pipeline.report.tables import (
    health_list,
    lineage_table,
    other_table,
    results_cells,
    settings_tables,
    wrong_table,
)
from posttrain.pipeline.report.wrong import TITLES


def test_wrong_table() -> None:
    assert wrong_table([]) == ""
    found = wrong_table([["a", *["1"] * (len(TITLES) - 1)]])
    assert TITLES[-1] in found and "Of all sampled completions" in found


def test_health_list() -> None:
    assert "No run has a metric with limits." in health_list({})
    found = health_list({"bad": ["kl 6"], "good": []})
    assert "<li>! bad: kl 6</li><li>No metric is beyond its limits: good.</li>" in found


def test_settings_tables() -> None:
    assert "params.yaml names no runs." in settings_tables({"runs": [], "alike": [], "differ": []})
    rows = [{"key": "lr", "values": ["1", None]}]
    found = settings_tables({"runs": ["a", "b"], "differ": rows, "alike": rows})
    assert "<code>lr</code>" in found and "not set" in found and "Settings that are alike: 1" in found
    assert "are alike" not in settings_tables({"runs": ["a", "b"], "differ": rows, "alike": []})


def test_lineage_table() -> None:
    stage = {"path": "sft@a", "start": None, "numbers": {"rows": 12000, "loss": 0.123456, "kind": "x"}, "settings": {}}
    found = lineage_table([stage, {**stage, "settings": {"lr": "1"}}])
    assert "12,000" in found and "0.1235" in found and "defaults" in found and "1 set" in found


def test_results() -> None:
    found = results_cells(["policy", "score [low, high]", ""], [["a", "1 [0, 2]", "same"]], {"b": "failed"})
    assert "1 [0,\u00a02]" in found and "failed" in found and "verdict" in found
    assert results_cells([], [], {}) == ""
    assert other_table("T", [["a"], ["x"]]).startswith("<h3>T</h3>")
