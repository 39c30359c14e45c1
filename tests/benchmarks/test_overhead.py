"""The tables that are timed keep every rule, and the page says what was missed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import RESULTS
from benchmarks.overhead.tables import frame_of
from docs.make.performance_overhead import overhead_lines
from posttrain.data.columns import Kind
from posttrain.pipeline.tables.store import check_table


@pytest.mark.parametrize("kind", ["chat", "pairs", "prompts", "rollouts"])
def test_the_tables_that_are_timed_keep_every_rule(kind: Kind, tmp_path: Path) -> None:
    frame = frame_of(kind, 160)
    assert frame.height == 160
    check_table(frame, kind, tmp_path / "table.parquet")


def test_the_page_judges_each_figure() -> None:
    found: dict[str, Any] = json.loads((RESULTS / "overhead.json").read_text(encoding="utf-8"))
    for one in found["sides"]["imports"]:
        one["cpu"] = 1.0
    sft, grpo = (side for side in found["sides"] if side.startswith("stage "))
    for one in found["sides"][sft]:
        one.update(first=1.2, reading=0.1, warm=1.5, again=1.7)  # 1.5 - 0.2 of warm updates - 0.1
    for one in found["sides"][grpo]:
        one.update(first=1.2, reading=0.1, warm=1.6, again=1.7)
    found["sides"]["tables pairs"] = [{"check_cpu": 4.0, "check_wall": 5.5}]
    found["sides"]["dvc ours"] = [{"cpu": 1.0, "wall": 1.0}]
    found["sides"]["flow"] = [{"cpu": 1.2, "wall": 2.6}]
    for name in ("bare", "hollow"):
        found["sides"][f"dvc {name}"] = [{"cpu": 0.9, "wall": 0.9}]
    page = overhead_lines(found)
    judged = {line.split(" |")[0].removeprefix("| "): line for line in page if line.endswith(("reached |", "missed |"))}
    sft, grpo = (judged[side.removeprefix("stage ")] for side in (sft, grpo))
    assert "1.10 [1.10, 1.10] | 1.20 [1.20, 1.20]" in sft and sft.endswith("reached |")
    assert "1.40 [1.40, 1.40]" in grpo and grpo.endswith("missed |")
    assert "1.20 [1.20, 1.20] | 2.60 [2.60, 2.60]" in judged["the flow of `dvc repro`"]
    assert judged["the flow of `dvc repro`"].endswith("missed |")
    assert judged["pairs"].endswith("missed |") and judged["chat"].endswith("reached |")
