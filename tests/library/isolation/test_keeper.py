"""The process that ends everything that a command started."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from posttrain.isolation import keeper
from posttrain.isolation.keeper import NOT_STARTED, _descendants, kill_all

TWO = "import subprocess, sys; print(subprocess.Popen(['sleep', '60']).pid, flush=True); sys.stdin.read()"


@pytest.fixture
def family() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A child in a group of its own, and the id of its child."""
    child = subprocess.Popen([sys.executable, "-c", TWO], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                             start_new_session=True)  # fmt: skip
    assert child.stdout is not None
    yield child, int(child.stdout.readline())
    child.kill()
    child.wait()


def test_descendants_are_all_living_ones(family: tuple[subprocess.Popen[str], int]) -> None:
    child, grandchild = family
    assert {child.pid, grandchild} <= set(_descendants()) and os.getppid() not in _descendants()
    psutil.Process(grandchild).kill()
    while psutil.pid_exists(grandchild) and psutil.Process(grandchild).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    assert _descendants().count(child.pid) == 1 and grandchild not in _descendants()


def test_a_group_is_killed(monkeypatch: pytest.MonkeyPatch, family: tuple[subprocess.Popen[str], int]) -> None:
    child, grandchild = family
    monkeypatch.setattr(keeper, "_descendants", list)  # those of this process are not the command's alone
    kill_all(child.pid)
    assert child.wait() == -9
    while psutil.pid_exists(grandchild) and psutil.Process(grandchild).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)


def kept(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-S", keeper.__file__, str(folder), *words]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None and child.stdout is not None
    said = child.stdout.read()
    status = child.wait()
    child.stdin.close()
    return subprocess.CompletedProcess(command, status, said)


@pytest.mark.parametrize(("code", "status"), [("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 15)", 143)])
def test_it_ends_with_the_status_of_its_command(tmp_path: Path, code: str, status: int) -> None:
    assert kept(tmp_path, sys.executable, "-c", code).returncode == status


def test_a_command_that_cannot_start(tmp_path: Path) -> None:
    done = kept(tmp_path, str(tmp_path / "none"))
    assert (done.returncode, done.stdout) == (NOT_STARTED, f"{tmp_path / 'none'}: No such file or directory\n")
