"""The page that a sweep ends with."""

from __future__ import annotations

import shutil
from pathlib import Path

from flows.sweep_page import write_page
from tests.workspace import ROOT


def test_a_sweep_has_a_page_or_says_why_not(finished: Path) -> None:
    """The policy stands for the sweep: `compare` takes both by name."""
    shutil.copyfile(ROOT / "dvc.yaml", "dvc.yaml")
    assert write_page("grpo", []) == "Its settings, and which of them mattered: .sweeps/grpo.html"
    assert "compare grpo" in (finished / ".sweeps/grpo.html").read_text(encoding="utf-8")
    said = write_page("none", ["grpo"])
    assert said.startswith("No page of it: error: ") and "Experiments need a git repository" in said
    assert not (finished / ".sweeps/none.html").exists()
