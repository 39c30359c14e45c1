"""DVC killed outright leaves no stage behind that writes on, and the next repro ends as if nothing had happened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.workspace import dvc, environment


def waited_for(condition: object, seconds: float) -> bool:
    """Whether a condition came true in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():  # type: ignore[operator]
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("shell", ["/bin/sh", "/bin/bash", "another program"])
@pytest.mark.slow
def test_a_stage_ends_when_dvc_is_killed(own_workspace: Path, shell: str, tmp_path: Path) -> None:
    """dash stays between dvc and the stage, as does a program that starts it; bash becomes the stage."""
    if shell == "another program":
        shell = str(tmp_path / "another_program")
        Path(shell).write_text('#!/bin/sh\n/bin/sh "$@"\n')
        Path(shell).chmod(0o755)
    lock = (own_workspace / "dvc.lock").read_text()
    command = [sys.executable, "-m", "dvc", "repro", "--force", "--single-item", "base_scratch@tiny"]
    repro = subprocess.Popen(
        command,
        cwd=own_workspace,
        env=environment() | {"SHELL": shell},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    assert waited_for(lambda: list((own_workspace / "checkpoints/base/tiny").glob("*/step-*")), 120), (
        "no checkpoint came"
    )
    stages = psutil.Process(repro.pid).children(recursive=True)
    assert stages, "no stage is running"
    os.kill(repro.pid, signal.SIGKILL)
    repro.wait()
    assert waited_for(lambda: not any(_alive(stage) for stage in stages), 20), stages
    done = dvc(own_workspace, *command[3:])
    assert done.returncode == 0, done.stdout
    assert "resumes from the checkpoint" in done.stdout, done.stdout
    assert (own_workspace / "dvc.lock").read_text() == lock


def _alive(process: psutil.Process) -> bool:
    return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
