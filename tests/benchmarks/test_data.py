"""The benchmark of a million rows does its work on two thousand."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.workspace import ROOT


@pytest.mark.slow
def test_every_step_does_the_same_work() -> None:
    """Ours and `datasets` leave as many rows, and the filters find what the generated rows repeat."""
    command = [sys.executable, "-m", "benchmarks.data", "--rows", "2000", "--show"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    steps = dict(line.split(": ", 1) for line in done.stdout.splitlines() if line.partition(":")[2].startswith(" {"))
    assert list(steps) == ["tables", "tokens", "tokens again", "near-duplicates", "13-grams", "datasets"]
    assert '\\"rows\\": 1980' in steps["tokens"]
    assert '\\"rows\\": 1980' in steps["datasets"]
    assert "Tables and tokens together" in done.stdout.splitlines()[-2]
