"""A line of a source is followed to tables, runs, models, figures and evaluated rows."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from posttrain.pipeline.lineage import downstream
from posttrain.pipeline.lineage.downstream import explain_place
from posttrain.pipeline.lineage.figures import Figures
from posttrain.pipeline.lineage.lineage import Lineage
from tests.pipeline.lineage.made import RESULTS, SOURCE, TABLE, TEXT, trace


def test_what_a_line_has_reached(finished: Path) -> None:
    prompt = trace(finished)
    node = explain_place(f"{SOURCE}:1", Figures(), Lineage())
    assert node.title == f"{SOURCE}:1"
    assert node.facts == {"text": [TEXT], "rows with its text": [prompt]}
    parts = {part.title: part.facts for part in node.parts}
    assert parts["tables"] == {TABLE: "row 1"}
    assert parts["runs that it reached"]["sft@main"] == f"through {TABLE}"
    assert parts["models"] == {"models/sft/main": "there"}
    assert parts["figures"]["sft.score"] == 0.3 and "dpo.score" not in parts["figures"]
    assert "evaluated rows" not in parts


def test_parts(finished: Path) -> None:
    trace(finished)
    assert downstream._with_parents(Path("data/a/b.parquet")) == {"data/a/b.parquet", "data/a", "data", "."}
    assert downstream._presence("sft/main") == "there" and downstream._presence("sft/b") == "not in the workspace"
    Path("checkpoints/sft/main/1").mkdir(parents=True)
    assert downstream._presence("sft/main") == "there, with checkpoints"
    found = downstream._figures(Figures(), {"evaluate@dpo"})
    assert found["dpo.score"] == 0.64 and not any(name.startswith("sft.") for name in found)


def test_evaluated_rows(finished: Path) -> None:
    table = pl.read_parquet(RESULTS)
    prompt = f"{3:016x}"
    mine = table.filter(pl.col("prompt_id") == prompt)
    found = downstream._answers([prompt], {"results/dpo/rollouts.parquet"})
    assert found[RESULTS] == {"rows": 3, "mean reward": mine["reward"].mean(), "first": mine["id"][0]}
    assert found.keys() == {f"results/{label}/rollouts.parquet" for label in ("base", "sft", "grpo")}
    assert downstream._answers(["none"], set()) == {}
