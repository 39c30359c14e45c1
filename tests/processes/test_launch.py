"""Processes of a run, really started and really killed: one error line, nothing alive after it and no folder left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psutil
import pytest

from tests.workspace import ROOT, environment

ENDED_S = 5.0
"""How long after a death anything of the run may live."""


class Started:
    """A run in a folder of its own."""

    def __init__(self, folder: Path, *words: object, env: Mapping[str, str] | None = None) -> None:
        self.folder, self.temporary = folder, folder / "tmp"
        self.temporary.mkdir(parents=True)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.processes.counting", *map(str, words)],
            cwd=folder,
            env=environment() | {"PYTHONPATH": str(ROOT), "TMPDIR": str(self.temporary)} | dict(env or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def others(self) -> list[psutil.Process]:
        """Its other processes, once it counts."""
        assert came_true((self.folder / "round").exists, 60), self.process.communicate(timeout=5)
        found = psutil.Process(self.process.pid).children(recursive=True)
        return sorted(found, key=lambda one: int(one.environ()["POSTTRAIN_RANK"]))

    def output(self) -> str:
        """What it printed, once it has ended."""
        return str(self.process.communicate(timeout=60)[0])


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., Started]]:
    """Starts runs, and ends what a failing test leaves."""
    runs: list[Started] = []

    def start(*words: object, env: Mapping[str, str] | None = None) -> Started:
        runs.append(Started(tmp_path / str(len(runs)), *words, env=env))
        return runs[-1]

    yield start
    for run in runs:
        run.process.kill()
        run.process.wait()


def came_true(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether a condition came true in time."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [one for one in processes if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


def test_all_processes_do_their_work_and_leave_nothing(started: Callable[..., Started]) -> None:
    run = started(3, 5)
    assert run.output() == "done\n"
    assert run.process.returncode == 0
    assert not list(run.temporary.iterdir())


@pytest.mark.parametrize("victim", [0, 1])
def test_a_process_that_is_killed_ends_all(started: Callable[..., Started], victim: int) -> None:
    run = started(3, 100_000)
    others = run.others()
    os.kill([run.process.pid, *(one.pid for one in others)][victim], signal.SIGKILL)
    assert came_true(lambda: not alive(others) and run.process.poll() is not None, ENDED_S), others
    if victim == 0:
        assert run.output() == ""
        assert came_true(lambda: not list(run.temporary.iterdir()), ENDED_S)
    else:
        assert run.output().count("error: ") == 1
        assert run.process.returncode == 1
        assert not list(run.temporary.iterdir())
