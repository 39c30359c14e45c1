"""A row is found by its id, with its source and its uses."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from posttrain.pipeline.lineage import row_sources
from posttrain.pipeline.lineage.lineage import Lineage
from posttrain.pipeline.lineage.row_sources import explain_row
from tests.pipeline.lineage.made import RESULTS, SOURCE, TABLE, TEXT, trace


def test_a_prompt_names_its_line_and_its_uses(finished: Path) -> None:
    prompt = trace(finished)
    node = explain_row(prompt, Lineage())
    assert node is not None and node.title == f"{prompt}: a row of {TABLE}"
    assert node.facts["prompt"] == [f"user: {TEXT}"] and node.facts["answer"] == "5"
    source, stage, rollouts = node.parts
    assert source.title == "source" and source.facts == {"lines": {SOURCE: [1]}}
    assert stage.title == "made by data_files@mine"
    assert (rollouts.title, rollouts.facts) == ("training rollouts", {"rows": "not stored"})
    assert explain_row("0" * 15 + "x", Lineage()) is None


def test_a_rollout_names_its_scores_and_its_stage(finished: Path) -> None:
    trace(finished)
    row = pl.read_parquet(RESULTS).row(3, named=True)
    node = explain_row(row["id"], Lineage())
    assert node is not None and node.title == f"{row['id']}: a row of {RESULTS}"
    assert node.facts["scores"] == {"correct": f"{row['reward']:.4g} ok"}
    assert node.facts["logps"] == f"{len(row['logps'])} values"
    assert [part.title for part in node.parts] == ["made by evaluate@sft"]


def test_uses_of_a_prompt(finished: Path) -> None:
    found = list(row_sources._uses(f"{3:016x}"))
    assert [node.title for node in found[:-1]] == [f"used by {file}" for file in row_sources._rollout_files()]
    assert [node.facts["rows"] for node in found[:-1]] == [3] * 4
    Path("rollouts/online/grpo").mkdir(parents=True)
    part = Path("rollouts/online/grpo/part-00000.parquet")
    pl.read_parquet(RESULTS).write_parquet(part)
    assert row_sources._rollout_files()[-1] == part
    assert [node.title for node in row_sources._uses(f"{3:016x}")][-1] == f"used by {part}"


def test_where_a_row_comes_from(finished: Path) -> None:
    trace(finished)
    row = {"prompt": [{"role": "user", "content": TEXT}]}
    assert row_sources._source(row, "data_tasks@toy", Lineage()).facts == {
        "generated": "by data_tasks@toy from params.yaml"
    }
    other = {"prompt": [{"role": "user", "content": "another question, which no line has"}]}
    none = row_sources._source(other, "data_files@mine", Lineage())
    assert none.facts == {"lines": "none: no source file holds its text"}


def test_cells() -> None:
    assert row_sources._cell("mask", [True, False]) == "2 values" and row_sources._cell("mask", None) is None
    assert row_sources._cell("prompt", [{"role": "user", "content": "a\nb"}]) == ["user: a b"]
    scores = [{"name": "a", "value": 0.5, "status": "ok"}, {"name": "b", "value": None, "status": "error"}]
    assert row_sources._cell("scores", scores) == {"a": "0.5 ok", "b": "error"}
    assert row_sources._cell("text", "x" * 200) == "x" * 110 + "..." and row_sources._cell("n", 1) == 1
    assert row_sources._score({"value": 1 / 3, "status": "ok"}) == "0.3333 ok"
