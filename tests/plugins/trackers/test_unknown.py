"""Trackers that are unknown or whose package is not installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.workspace import ROOT, environment


@pytest.mark.slow
def test_a_tracker_that_is_unknown_or_not_installed_is_refused(finished: Path) -> None:
    def error(*words: str) -> str:
        command = [sys.executable, "-m", "posttrain", "track", *words]
        env = environment() | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, cwd=finished, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 1 and "Traceback" not in done.stderr
        return done.stderr

    assert "no tracker: 'wandbb' is unknown. Did you mean 'wandb'" in error("--to", "wandbb")
    assert "not installed: trackio" in (said := error("--to", "trackio", "grpo")) and "make env-track" in said
