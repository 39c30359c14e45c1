"""What `posttrain show inspect` says where the environment of Inspect is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.pipeline.report import workspace
from tests.workspace import ROOT, environment


def test_a_missing_environment_is_named(tmp_path: Path) -> None:
    made = workspace.make(tmp_path / "made")
    env = {**environment(), "PYTHONPATH": str(ROOT), "POSTTRAIN_INSPECT": sys.executable}
    command = [sys.executable, "-m", "posttrain", "show", "inspect"]
    done = subprocess.run(command, cwd=made, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "Inspect AI is missing in the environment of" in done.stderr and "POSTTRAIN_INSPECT=" in done.stderr
