"""recipes/watched.yaml, followed: a watched SFT run keeps its best weights, and two tables say what it cost."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import polars as pl
import pytest

from tests.architecture.sources import ROOT
from tests.workspace import dvc, run


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_recipe_keeps_the_best_weights_and_measures_two_tables(own_workspace: Path) -> None:
    shutil.copyfile(ROOT / "recipes/watched.yaml", own_workspace / "params.yaml")
    done = dvc(own_workspace, "repro")
    assert done.returncode == 0, done.stdout

    metrics = json.loads((own_workspace / "metrics/sft/few.json").read_text(encoding="utf-8"))
    curve = pl.read_csv(own_workspace / "plots/sft/few.csv").drop_nulls("heldout_loss")
    assert metrics["kept_step"] == metrics["best_step"] < metrics["steps"] < 300, "it learns its few rows by heart"
    best = curve.filter(pl.col("step") == metrics["best_step"])["heldout_loss"][0]
    assert best == curve["heldout_loss"].min() == pytest.approx(metrics["heldout_loss"], rel=1e-3)
    assert curve["heldout_loss"][-1] > best

    results = {
        name: json.loads((own_workspace / f"results/{name}/metrics.json").read_text())
        for name in ("base_text", "few_text")
    }
    assert results["few_text"]["perplexity"] > results["base_text"]["perplexity"], "what it cost"
    shown = run(own_workspace, "python", "-m", "posttrain", "show", "results")
    assert "two_step/corpus" in shown.stdout and "difference to base" in shown.stdout, shown.stdout
    rows = json.loads(run(own_workspace, "python", "-m", "posttrain", "show", "results", "--json").stdout)
    (lost,) = [row for row in rows if row.get("table") and row["policy"] == "few"]
    assert lost["gain_high"] < 0 and lost["run"] == "few_text"
    compared = run(own_workspace, "python", "-m", "posttrain", "compare", "--table", "two_step/corpus")
    assert "base_text" in compared.stdout and "few_text" in compared.stdout, compared.stdout
    why = run(own_workspace, "python", "-m", "posttrain", "why", "few_text.score")
    again = f"computed again: {results['few_text']['score']:.6g}, agrees"
    assert "made by sft@few" in why.stdout and again in why.stdout, why.stdout

    params = (own_workspace / "params.yaml").read_text(encoding="utf-8")
    (own_workspace / "params.yaml").write_text(params.replace("patience: 3", "patience: 4"), encoding="utf-8")
    status = run(own_workspace, "python", "-m", "posttrain", "status").stdout
    (stale,) = [line for line in status.splitlines() if line.startswith("sft@few: ")]
    assert "evaluate_runs@few_text" in stale.partition("; then stale because of it: ")[2], status
    assert "base_text" not in status, status
