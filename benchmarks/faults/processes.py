"""Starts stages by the server of forks, and kills them when it is told to."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.workspace import ROOT, environment

STEP = "in an optimizer step"
PLACES: tuple[tuple[str, str, str], ...] = (
    ("train/checkpoint.py", "save", "in the middle of a checkpoint"),
    ("train/checkpoint.py", "resume", "while a checkpoint was read"),
    ("train/checkpoint.py", "", "while checkpoints were looked after"),
    ("runs/stage_checkpoints.py", "", "while checkpoints were looked after"),
    ("posttrain/files.py", "write_json", "while a summary was written"),
    ("posttrain/locks.py", "", "while checkpoints were looked after"),
    ("models/store.py", "save_model", "while a model was written"),
    ("data/parquet.py", "write_parquet", "while a table was written"),
    ("train/metrics.py", "_write", "while the log was written"),
    ("report/build.py", "_write_text", "while the report was written"),
    ("sampling/local.py", "", "in a rollout"),
    ("train/step.py", "step", STEP),
    ("online/trpo.py", "", STEP),
    ("train/loop.py", "", "between two optimizer steps"),
)
"""(file, function, what the process was doing), the first that is on the stack counts; "" is any function."""
BACKWARD = ("train/step.py", "_backward")


@dataclass(frozen=True)
class Kill:
    """When a stage is killed: after so many seconds, or before its so-many-th change of a file."""

    seconds: float | None = None
    operation: int | None = None


NEVER = Kill(operation=10**9)
"""Counts the changes."""


@dataclass(frozen=True)
class Ended:
    """How a stage ended, what it said, and what it was doing when it was killed (None if it was not)."""

    status: int
    output: str
    seconds: float
    doing: str | None
    operations: int = 0
    """The changes of files that it came to, where it was to be killed before one of them."""


class Server:
    """The server of forks as a context."""

    def __init__(self, env: Mapping[str, str] | None = None) -> None:
        self._env, self._read = dict(env or {}), b""

    def __enter__(self) -> Server:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.faults.server"],
            cwd=ROOT, env=environment() | self._env,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
        )  # fmt: skip
        self._folder = tempfile.TemporaryDirectory(prefix="faults")
        assert self._answer(300) == "ready"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._folder.cleanup()

    def run(
        self,
        workspace: Path,
        stage: str,
        kill: Kill | None = None,
        *,
        before: str | None = None,
        given: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        patience: float = 300.0,
    ) -> Ended:
        """Run `stage`, written like `online grpo`, to its end; `before` names a function to run first in the child.

        An argument with spaces in it is set apart by a NUL, which no argument can hold.
        """
        kill = kill or Kill()
        name, *arguments = stage.split("\0") if "\0" in stage else stage.split()
        output, trace, operations = (Path(self._folder.name) / part for part in ("output", "trace", "operations"))
        surroundings = {"DVC_ROOT": str(workspace), **(env or {})}
        request = {
            "cwd": str(workspace), "stage": name, "arguments": arguments, "operation": kill.operation,
            "output": str(output), "trace": str(trace), "operations": str(operations), "env": surroundings,
            "before": before, "given": dict(given or {}),
        }  # fmt: skip
        trace.unlink(missing_ok=True)
        operations.unlink(missing_ok=True)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        child, began = int(self._answer(60)), time.monotonic()
        shot = kill.seconds is not None and not self._readable(kill.seconds)
        if shot:
            _shoot(child, trace)
        status = int(self._answer(patience, child))
        if shot and status == -signal.SIGSEGV:  # a look at the stack in the middle of a call can itself be deadly
            status = -signal.SIGKILL
        took = time.monotonic() - began
        text = output.read_text(encoding="utf-8", errors="replace")
        stack = trace.read_text(errors="replace") if trace.exists() else ""
        doing = doing_of(stack) if status == -signal.SIGKILL else None
        count = int(operations.read_text() or 0) if operations.exists() else 0
        return Ended(status, text, took, doing, count)

    def _readable(self, seconds: float) -> bool:
        """Whether a whole answer came in time; the pipe is read by hand, because a reader's buffer hides answers."""
        assert self._process.stdout is not None
        pipe, until = self._process.stdout.fileno(), time.monotonic() + seconds
        while b"\n" not in self._read:
            if not select.select([pipe], [], [], max(until - time.monotonic(), 0))[0]:
                return False
            data = os.read(pipe, 4096)
            if not data:
                raise EOFError("the server of forks is gone")
            self._read += data
        return True

    def _answer(self, patience: float, child: int | None = None) -> str:
        late = not self._readable(patience)
        if late and child is None:
            raise TimeoutError(f"the server of forks gives no answer in {patience} s")
        if late:
            os.killpg(child or 0, signal.SIGKILL)
            self._readable(patience)
        answer, _, self._read = self._read.partition(b"\n")
        if late:
            raise TimeoutError(f"the stage still ran after {patience} s")
        return answer.decode()


def _shoot(child: int, trace: Path) -> None:
    """Ask for the stack, then SIGKILL the whole session, at once whether the answer came or not."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if trace.exists():
            os.kill(child, signal.SIGUSR1)
            until = time.monotonic() + 0.05
            while time.monotonic() < until and not trace.stat().st_size:
                time.sleep(0.001)
        os.kill(child, signal.SIGKILL)  # by its own number too: it may not have its session yet
        os.killpg(child, signal.SIGKILL)


def doing_of(trace: str) -> str:
    """What a process was doing by its main thread's stack, which faulthandler writes last."""
    stack = re.findall(r'File ".*?([^/"]+/[^/"]+)", line \d+ in (\S+)', re.split(r"\n\n", trace.strip())[-1])
    for file, function, doing in PLACES:
        if any(file == where and function in ("", inside) for where, inside in stack):
            return "in or between micro-batches" if doing == STEP and BACKWARD in stack else doing
    return "while it started or read its inputs"
