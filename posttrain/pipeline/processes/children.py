"""Child processes of a run: start them, detect how they end, and make them end with their parent."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from posttrain.errors import PipelineError
from posttrain.isolation.library import library_environment
from posttrain.pipeline.processes.schedulers import LOCAL, MEETING, RANK, SIZE, is_ranked, is_scheduled, read_slurm

PARENT: Final = "POSTTRAIN_PARENT"
"""The environment variable with the process that started this one."""
POLL_S: Final = 0.2
"""Seconds between checks whether the others are alive."""
GRACE_S: Final = 1.5
"""Seconds that the first process may take to report its own error after another one has ended."""
LEAVING_S: Final = 5.0
"""Seconds that the others may take to end after the run is done."""
TAIL: Final = 40
"""The number of output lines shown for a process that ended without an error line."""
CRASHES: Final = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
"""Signals with which a process ends itself, mostly after printing the reason."""
FOLDER: Final = f"posttrain-run-{os.getuid()}-"
LOST: Final = re.compile(r"gloo|NCCL|(connection|socket).{0,20}(closed|reset|refused)|broken pipe", re.I)
"""torch's messages when another process is gone."""
RANKED: Final = re.compile(r"^\[rank\d+\]: ?")
"""torch's prefix for lines of a traceback."""
RESUME: Final = "The next run resumes from the last checkpoint, if there is one"
MEMORY: Final = "The system may have killed it because memory ran out"


def follow() -> None:
    """End this process when its parent, the process that started it, ends.

    The stage's own process handles signals to the whole group, unless a scheduler sends them. `stages` calls this
    before torch is imported, so that a run that is killed during its start leaves nothing.
    """
    read_slurm()
    if not is_ranked() or any(thread.name == PARENT for thread in threading.enumerate()):
        return
    if is_scheduled():
        os.environ[PARENT] = str(os.getppid())
    else:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, name=PARENT, daemon=True).start()
    atexit.register(remove_after_parent)


def _end_with_parent() -> None:
    while _has_parent():
        time.sleep(POLL_S)
    remove_after_parent()
    os._exit(1)


def _has_parent() -> bool:
    return str(os.getppid()) == os.environ.get(PARENT, "")


def remove_after_parent() -> None:
    """Remove the run's folder if its first process was killed, e.g. after this process lost the connection."""
    if not is_ranked():
        return
    until = time.monotonic() + POLL_S
    while _has_parent():
        if time.monotonic() > until:
            return
        time.sleep(0.02)
    remove(Path(os.environ.get(MEETING, "").removeprefix("file://")).parent)


@dataclass(frozen=True)
class Death:
    """The end of a process before the end of its run."""

    order: int
    """0: killed; 1: its own error; 2: it lost another process."""
    what: str
    output: str
    """The end of its output, if that contains no error line."""

    def error(self, run: str) -> PipelineError:
        """Return the death as an error of the run."""
        fix = f"{MEMORY}. {RESUME}" if "SIGKILL" in self.what else RESUME
        return PipelineError(what=self.what, where=run, fix=fix)


class Children:
    """The processes of a run that this process started."""

    def __init__(self, command: Sequence[str], size: int, meeting: str, network: Mapping[str, str]) -> None:
        """Start all processes except the first, which is the stage's own. `network`: extra environment."""
        self._started: dict[int, tuple[subprocess.Popen[bytes], IO[bytes]]] = {}
        self._size = size
        for number in range(1, size):
            place = {RANK: number, SIZE: size, LOCAL: number, MEETING: meeting, PARENT: os.getpid()}
            env = library_environment() | {name: str(value) for name, value in place.items()}
            env |= {"POSTTRAIN_PROFILE": "0", **network}
            output = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the child, and without a name
            child = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
            self._started[number] = (child, output)

    def deaths(self) -> list[Death]:
        """Return the processes that ended before their work was done."""
        return [
            self._death(number, child.returncode, output)
            for number, (child, output) in self._started.items()
            if child.poll()
        ]

    def _death(self, number: int, status: int, output: IO[bytes]) -> Death:
        size = os.fstat(output.fileno()).st_size
        text = os.pread(output.fileno(), 65_536, max(size - 65_536, 0)).decode(errors="replace").strip()
        lines = [RANKED.sub("", line) for line in text.splitlines()]
        name = f"process {number + 1} of {self._size}"
        if status < 0:
            what = f"{name} was ended by signal {-status} ({signal.Signals(-status).name})"
            return Death(1, what, "\n".join(lines[-TAIL:])) if -status in CRASHES else Death(0, what, "")
        said = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        line = said[-1] if said else lines[-1] if lines else "it printed nothing"
        order = 2 if not said and LOST.search(line) else 1
        return Death(order, f"{name} ended with exit code {status}: {line}", "" if said else "\n".join(lines[-TAIL:]))

    def ended(self, patience_s: float) -> bool:
        """Tell whether all ended in time."""
        until = time.monotonic() + patience_s
        while any(child.poll() is None for child, _ in self._started.values()):
            if time.monotonic() > until:
                return False
            time.sleep(0.02)
        return True

    def kill(self) -> None:
        """Kill the processes that are still running."""
        for child, _ in self._started.values():
            child.kill()
        self.ended(LEAVING_S)  # the driver of a GPU may hold one for longer


def remove(folder: Path) -> None:
    """Remove the folder of a run."""
    if folder.name.startswith(FOLDER):
        shutil.rmtree(folder, ignore_errors=True)
