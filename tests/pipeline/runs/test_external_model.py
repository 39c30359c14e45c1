"""The metrics that the user's own trainer writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from posttrain.errors import DataError
from posttrain.pipeline.runs.external import ExternalRun
from posttrain.pipeline.runs.external_model import _checked_metrics, _save_metrics
from posttrain.pipeline.tables.curve import read_curve

PARAMS = ExternalRun(command="true", script="my/train.py", start="base/a", data="none")


def test_metrics_have_a_step_in_each_row(tmp_path: Path) -> None:
    file = tmp_path / "metrics.csv"
    assert _checked_metrics(file) == {}
    file.write_text("step,loss\n1,0.5\n2,\n")
    assert _checked_metrics(file) == {"step": [1.0, 2.0], "loss": [0.5, None]}
    for text in ("loss\n0.5\n", "step,loss\n,0.5\n"):
        file.write_text(text)
        with pytest.raises(DataError, match="some rows of the metrics have no step"):
            _checked_metrics(file)


def test_the_last_value_of_each_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _save_metrics("external@a", {"step": [1.0, 2.0], "loss": [0.5, None]}, PARAMS)
    found = json.loads(Path("metrics/external/a.json").read_text())
    assert found == {"script": "my/train.py", "steps": 2, "loss": 0.5}
    assert read_curve(Path("plots/external/a.csv")) == {"step": [1.0, 2.0], "loss": [0.5, None]}
    _save_metrics("external@b", {}, PARAMS)
    assert Path("plots/external/b.csv").read_text() == "step,loss\n"
