"""Every number that the miniature records has an entry of its own stage."""

from __future__ import annotations

import json

from posttrain.pipeline.metrics.catalog import about
from tests.workspace import ROOT

OF_THE_TASK = {"working", "right_given_working"}
"""Metrics that the miniature's own task defines."""


def test_every_recorded_number_of_the_miniature_has_an_entry() -> None:
    curves = {file: file.read_text().split("\n", 1)[0].split(",")[1:] for file in (ROOT / "plots").glob("*/*.csv")}
    files = {file: list(json.loads(file.read_text())) for file in (ROOT / "metrics").glob("*/*.json")}
    lacking = [
        f"{file.parent.name}: {name}"
        for file, names in (curves | files).items()
        for name in names
        if file.parent.name != "data" and name != "algorithm" and not about(file.parent.name, name)
    ]
    lacking += [
        f"evaluate: {name}"
        for file in (ROOT / "results").glob("*/metrics.json")
        for name in json.loads(file.read_text())
        if name not in OF_THE_TASK and not about("evaluate", name)
    ]
    assert not lacking and files
