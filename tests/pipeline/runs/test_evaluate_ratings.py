"""Policies are compared with each other on the prompts of their evaluations."""

from __future__ import annotations

import json
from pathlib import Path

from posttrain.pipeline.runs.evaluate_ratings import rate
from posttrain.pipeline.tables.store import read_table


def test_ratings_are_returned_and_written(finished: Path) -> None:
    file = finished / "params.yaml"
    file.write_text(f"{file.read_text()}  ratings: {{main: {{}}}}\n")
    found = rate("main")
    assert found == json.loads(Path("metrics/ratings/main.json").read_text())
    assert found["rating_grpo"] > found["rating_dpo"] > found["rating_sft"] > found["rating_base"]
    matches = read_table(Path("metrics/ratings/main.parquet"), "matches")
    assert matches.height == 6 * 30 * 2
