"""A closed terminal, Ctrl-C, SIGTERM, a killed experiment: whatever ends DVC, the next run ends with the same bytes."""

from __future__ import annotations

import contextlib
import os
import pty
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from benchmarks.faults.dvc_kills import copied
from benchmarks.faults.kills import digests
from tests.pipeline.test_orphans import waited_for
from tests.workspace import dvc, environment, git

pytestmark = [pytest.mark.slow]
STAGE, CHECKPOINTS = "online@ppo", "checkpoints/online/ppo"
EXPERIMENT = ("exp", "run", "--temp", "--name", "other", "-S", "online.runs.grpo.kl.beta=0.03", "online@grpo")
LEADER = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "os.execv(sys.executable, [sys.executable, '-m', 'dvc', *sys.argv[1:]])"
)
"""Take the terminal that stands open as this session's own, and become DVC."""
ENDINGS: dict[str, Callable[[int, int], object]] = {
    "closed terminal": lambda terminal, _: os.close(terminal),
    "Ctrl-C": lambda terminal, _: os.write(terminal, b"\x03"),
    "SIGTERM to dvc": lambda _, process: os.kill(process, signal.SIGTERM),
    "SIGTERM to all": lambda _, process: os.killpg(process, signal.SIGTERM),
}
"""How a run ends -> what is done with (its terminal, DVC's process)."""


def in_terminal(workspace: Path, *words: str) -> tuple[int, subprocess.Popen[bytes]]:
    """DVC as the leader of a terminal of its own."""
    terminal, inner = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", LEADER, *words],
        cwd=workspace, env=environment(), stdin=inner, stdout=inner, stderr=inner,
        start_new_session=True,
    )  # fmt: skip
    os.close(inner)
    return terminal, process


def at_work(workspace: Path) -> list[psutil.Process]:
    """Processes whose folder is the workspace, or a copy that DVC made inside it."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and Path(process.cwd()).is_relative_to(workspace):
                found.append(process)
    return found


@pytest.fixture(scope="module")
def whole(smoke_workspace: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    workspace = copied(smoke_workspace, tmp_path_factory.mktemp("whole") / "w")
    done = dvc(workspace, "repro", "--single-item", STAGE)
    assert done.returncode == 0, done.stdout
    return workspace


@pytest.mark.parametrize("how", ENDINGS)
def test_a_run_that_is_ended_ends_with_the_same_bytes(
    smoke_workspace: Path, whole: Path, tmp_path: Path, how: str
) -> None:
    workspace = copied(smoke_workspace, tmp_path / "w")
    terminal, process = in_terminal(workspace, "repro", "--single-item", STAGE)
    assert waited_for(lambda: list((workspace / CHECKPOINTS).glob("*/step-*")), 120), "no checkpoint came"
    ENDINGS[how](terminal, process.pid)
    process.wait(60)
    assert waited_for(lambda: not at_work(workspace), 20), at_work(workspace)
    again = dvc(workspace, "repro", "--single-item", STAGE)
    assert again.returncode == 0, again.stdout
    assert (workspace / "dvc.lock").read_text() == (whole / "dvc.lock").read_text()
    assert digests(workspace) == digests(whole)


def recorded(workspace: Path) -> str:
    """dvc.lock of the experiment."""
    names = git(workspace, "for-each-ref", "--format=%(refname)", "refs/exps").split()
    return git(workspace, "show", f"{next(name for name in names if name.endswith('/other'))}:dvc.lock")


def test_a_killed_experiment_in_a_copy_goes_on(smoke_workspace: Path, tmp_path: Path) -> None:
    for name in ("whole", "cut"):
        shutil.copytree(smoke_workspace, tmp_path / name, symlinks=True)
        git(tmp_path / name, "add", "--all")
        git(tmp_path / name, "commit", "--quiet", "--message", "results")
    done = dvc(tmp_path / "whole", *EXPERIMENT)
    assert done.returncode == 0, done.stdout
    cut = tmp_path / "cut"
    before = set((cut / "checkpoints/online").rglob("step-*"))
    _, process = in_terminal(cut, *EXPERIMENT)
    assert waited_for(lambda: set((cut / "checkpoints/online").rglob("step-*")) - before, 120), "no checkpoint came"
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(60)
    assert waited_for(lambda: not at_work(cut), 20), at_work(cut)
    again = dvc(cut, *EXPERIMENT)
    assert again.returncode == 0, again.stdout
    assert recorded(cut) == recorded(tmp_path / "whole")
