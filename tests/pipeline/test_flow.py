"""The real pipeline as a Prefect flow: it believes DVC, runs what changed, and says which is which."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.workspace import run

EVALUATIONS = {f"{stage}@{label}" for stage in ("completions", "evaluate") for label in ("base", "sft", "dpo", "grpo")}


def states(output: str) -> dict[str, str]:
    """Stage -> state, from the table at the end."""
    rows = re.findall(r"^\W*([\w@]+(?:@[\w-]+)?)\W+(Completed|Cached|RunCached|Failed|NotRun)\b", output, re.MULTILINE)
    return dict(rows)


@pytest.mark.slow
def test_the_flow_runs_what_changed_and_nothing_else(own_workspace: Path) -> None:
    flow = (sys.executable, "-m", "flows.pipeline")
    idle = run(own_workspace, *flow)
    assert idle.returncode == 0, idle.stdout
    assert len(states(idle.stdout)) == 16 and set(states(idle.stdout).values()) == {"Cached"}, idle.stdout

    params, recorded = own_workspace / "params.yaml", (own_workspace / "dvc.lock").read_bytes()
    before = params.read_text()
    params.write_text(before.replace("samples: 8", "samples: 2"))
    changed = run(own_workspace, *flow)
    assert changed.returncode == 0, changed.stdout
    found = states(changed.stdout)
    assert {name for name, state in found.items() if state == "Completed"} == {
        *EVALUATIONS,
        "report",
    }, changed.stdout

    params.write_text(before)
    undone = run(own_workspace, *flow)
    assert undone.returncode == 0, undone.stdout
    found = states(undone.stdout)
    ran = {name for name, state in found.items() if state == "Completed"}
    assert ran == {"report"}, "DVC's run cache has no stage whose outputs in git are no metrics"
    assert {name for name, state in found.items() if state == "RunCached"} == EVALUATIONS, undone.stdout
    assert (own_workspace / "dvc.lock").read_bytes() == recorded, "the same report"
