"""The table of `make real`: trained and untrained tasks apart, each policy beside the one before it; the estimate."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.real import KNOWN, estimate, table
from posttrain.measure.phases import NAMES, OTHER
from tests.pipeline.report import workspace
from tests.workspace import ROOT

RUNS = """
sft: {runs: {main: {start: base/tiny}}}
online: {runs: {grpo: {start: sft/main}}}
"""
TASKS = """
data:
  tasks:
    math:
      task: mixture
      parts:
        sums: {task: sums}
        products: {task: products, splits: [test]}
"""


@pytest.mark.slow
def test_the_table_separates_trained_tasks_from_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workspace.make(tmp_path / "finished"))
    policies = "evaluate: {policies: {base: base/tiny, sft: sft/main, grpo: online/grpo}}\n"
    Path("params.yaml").write_text(TASKS + RUNS + policies)
    half = workspace.PROMPTS // 2
    for policy, right in (("base", 0), ("sft", 6), ("grpo", half)):
        rows = [
            {**row, "task": "sums", "reward": float(int(row["answer"]) <= right)}
            if int(row["answer"]) <= half
            else {**row, "task": "products", "reward": 0.0}
            for row in workspace.rollouts(policy)
        ]
        workspace.put_policy(Path(), policy, rows)
    timings = {"seconds": {}, "starts": 1, "peak_mb": 2500.0}
    phases = dict.fromkeys((*NAMES, OTHER), 0.0)
    workspace.put_json(
        Path("timings/sft/main.json"), {**timings, "seconds": phases, "stage": "sft@main", "total": 120.0, "cpu": 200.0}
    )
    head, ruler, *rows, _, cost = table().splitlines()
    assert head.startswith("| policy | trained: sums [95 %] | change [95 %] | never trained: products [95 %] |")
    assert ruler == "| --- | ---: | ---: | ---: | ---: |"
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert [row[0] for row in cells] == ["base", "sft", "grpo"]
    assert [row[1][:5] for row in cells] == ["0.000", "0.400", "1.000"]
    assert [row[2][:6] for row in cells] == ["-", "+0.400", "+0.600"] and [row[4][:6] for row in cells[1:]] == [
        "+0.000"
    ] * 2
    assert cost.startswith("2 minutes in all (sft@main 2.0), 3 minutes of CPU time, 2.5 GB of memory at most")


@pytest.mark.slow
@pytest.mark.parametrize("name", KNOWN)
def test_the_estimate_names_time_memory_and_disk(name: str) -> None:
    assert (ROOT / "recipes" / f"{name}.yaml").is_file()
    said = estimate(name)
    assert said.startswith(f"{name}: about ") and " minutes with 2 threads" in said
    assert "GB of memory" in said and "GB of disk" in said
