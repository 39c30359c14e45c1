"""A policy that exploits its reward model, in a real pipeline: the alarm, the weights that are kept, the report."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from ruamel.yaml import YAML

from benchmarks.over_optimisation import SHARED
from tests.workspace import dvc

RUN = {**SHARED, "watch": {"every": 6, "prompts": 100, "keep": "best", "patience": 5}}


@pytest.mark.slow
def test_over_optimisation_is_noticed_and_the_best_weights_are_kept(own_workspace: Path) -> None:
    yaml, file = YAML(typ="safe", pure=True), own_workspace / "params.yaml"
    params = yaml.load(file.read_text(encoding="utf-8"))
    params["online"]["runs"] = {"over": RUN}
    params["evaluate"]["policies"] = {"sft": "sft/main", "over": "online/over"}
    file.write_text(json.dumps(params), encoding="utf-8")
    done = dvc(own_workspace, "repro")
    assert done.returncode == 0, done.stdout
    assert "OVER-OPTIMISATION at step" in done.stdout

    metrics = json.loads((own_workspace / "metrics/online/over.json").read_text(encoding="utf-8"))
    curve = pl.read_csv(own_workspace / "plots/online/over.csv").filter(pl.col("heldout_true").is_not_null())
    assert metrics["steps"] < 60, "it ends early"
    assert metrics["kept_step"] == metrics["best_step"] < metrics["over_optimised_step"] <= metrics["steps"]
    assert curve["heldout_proxy"][-1] > metrics["heldout_proxy"], "the proxy went on rising"
    assert curve["heldout_true"][-1] < metrics["heldout_true"] - 0.1, "while the true reward fell"
    assert curve["step"].to_list() == list(range(0, metrics["steps"] + 1, 6))

    record = json.loads((own_workspace / "records/online/over.json").read_text(encoding="utf-8"))
    assert record["weights_version"] == f"online@over step {metrics['kept_step']}" and len(record["weights"]) == 64
    assert '"over_optimised_step"' in (own_workspace / "report/report.html").read_text(encoding="utf-8")
