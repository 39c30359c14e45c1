"""A run of several processes: its first process, which is the stage's own, starts the others and watches them.

It holds the lock, writes all files and has the other processes of its host as children, with the same command. If one
of them ends, all end; if it ends itself, they end too.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from posttrain.errors import ParamsError, PipelineError, PosttrainError
from posttrain.processes.children import (
    FOLDER,
    GLOO,
    GRACE_S,
    LEAVING_S,
    LOCAL,
    LOST,
    MEETING,
    POLL_S,
    RANK,
    SIZE,
    Children,
    Death,
    follow,
    is_worker,
    remove,
    remove_after_parent,
)
from posttrain.processes.hosts import place, share
from posttrain.processes.others import Others
from posttrain.workspace import HELD, PARAMS_FILE, hold, library_command, remove_unlocked

STALE_S: Final = 60.0
"""The age from which a folder that no process holds counts as left by a killed run."""
LOOPBACK: Final = "lo0" if sys.platform == "darwin" else "lo"
FAILED: Final = "it failed there, and its output there says why"


class _Run:
    """The run whose first process this is."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.children: Children | None = None
        self.others: Others | None = None
        self.folder = Path()
        self.over = threading.Event()
        self.error: str | None = FAILED
        self.reporting = threading.Lock()
        """Held by the one thread that reports why the run ends."""
        self._looking = threading.Lock()

    def watch(self) -> None:
        """Report the death of a process although the main thread may wait for it for hours."""
        while not self.deaths():
            if self.over.wait(POLL_S):
                return
        self.settle()
        if not self.over.is_set() and self.reporting.acquire(blocking=False):
            error = self.reason()
            self.error = str(error)
            print(f"error: {error}", file=sys.stderr, flush=True)
            for save in _ON_DEATH:
                save(str(error))
            self.end()
            os._exit(1)

    def settle(self) -> None:
        """Wait for what else may come to light; where a process was killed, that is the reason."""
        until = time.monotonic() + GRACE_S
        while time.monotonic() < until and all(one.order for one in self.deaths()) and not self.over.wait(0.05):
            pass

    def deaths(self) -> list[Death]:
        """Return the processes and hosts that ended before the run."""
        with self._looking:
            return [*(self.children.deaths() if self.children else ()), *(self.others.deaths() if self.others else ())]

    def reason(self, most: int = 2) -> PipelineError | None:
        """The likeliest of the deaths as an error, with what the process printed; `most` leaves out some kinds."""
        death = min((one for one in self.deaths() if one.order <= most), key=lambda one: one.order, default=None)
        if death and death.output:
            print(death.output, file=sys.stderr)
        return death.error(self.name) if death else None

    def end(self) -> None:
        """End all other processes, at once."""
        self.over.set()
        with self._looking:
            others, self.others = self.others, None
        if others:
            others.end(self.error)
        if self.children:
            self.children.kill()
        remove(self.folder)


_RUN: list[_Run] = []
_ON_DEATH: list[Callable[[str], Any]] = []
_STAGE: list[str] = []


def of_stage(stage: str, on_death: Callable[[str], Any]) -> None:
    """Name the stage that this process runs, and what is called with the error if another process ends."""
    _STAGE[:], _ON_DEATH[:] = [stage], [on_death]


def start(name: str, processes: int, device: str) -> None:
    """Start the other processes of the run and meet them; in one of those, meet the first one."""
    if processes == 1:
        return
    from posttrain.processes.world import connect

    if is_worker():
        follow()
        number, size, local = (int(os.environ[one]) for one in (RANK, SIZE, LOCAL))
        connect(number, size, os.environ[MEETING], _device(device, local))
        return
    at = place()
    numbers = share(processes, at) if at else range(processes)
    device = _device(device, 0, len(numbers))
    _RUN.append(run := _Run(name))
    atexit.register(abandon)
    if at:
        run.others = Others(name, _STAGE[0] if _STAGE else name, at, processes)
        meeting, network = run.others.meeting, run.others.start()
    else:
        run.folder = _folder()
        meeting, network = f"file://{run.folder / 'meeting'}", {GLOO: os.environ.get(GLOO, LOOPBACK)}
    run.children = Children(_command(), processes, numbers, meeting, network)
    threading.Thread(target=run.watch, daemon=True).start()
    os.environ |= network
    connect(0, processes, meeting, device)


def end() -> None:
    """The run is done: wait a moment for its other processes, and end what is left of them."""
    for run in _RUN:
        run.error = None
        if run.children:
            run.children.ended(LEAVING_S)
        run.end()
    _RUN.clear()


def abandon() -> None:
    """The run failed: end its other processes."""
    for run in _RUN:
        run.end()


def end_failed(error: BaseException) -> None:
    """End this process at once if it shares a run: torch's own end takes seconds, in which a process looks alive."""
    if not _RUN and not is_worker():
        return
    code = error.code if isinstance(error, SystemExit) else 1
    if not isinstance(error, SystemExit):
        sys.excepthook(type(error), error, error.__traceback__)
    abandon()
    remove_after_parent()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)


@contextlib.contextmanager
def explained_deaths() -> Iterator[None]:
    """An error of the work that comes from the death of another process becomes that death."""
    try:
        yield
    except BaseException as error:
        for run in _RUN:
            _claim(run)
            death = _behind(error, run)
            run.error = str(death or error) or FAILED
            if death:
                raise death from error
        raise
    for run in _RUN:
        _claim(run)
        run.over.set()


def _claim(run: _Run) -> None:
    """Become the thread that reports; if the watch already does, wait for it to end this process."""
    if not run.reporting.acquire(blocking=False):
        threading.Event().wait()


def _behind(error: BaseException, run: _Run) -> PipelineError | None:
    """The death that an error comes from; an error that a person can fix is its own reason, unless one was killed."""
    if isinstance(error, PosttrainError):
        return run.reason(most=0)
    if not isinstance(error, Exception) or not LOST.search(str(error)):
        return None
    run.settle()
    return run.reason()


def _device(device: str, local: int, count: int = 1) -> str:
    """Return the device of this process, chosen where there are several."""
    import torch

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "mps":
        what = "several processes cannot share a device of kind mps"
        raise ParamsError(what=what, where=PARAMS_FILE, fix="Set processes: 1, or device: cpu")
    if device == "cuda":
        if not torch.cuda.is_available():
            raise ParamsError(what="device = cuda: no GPU was found", where=PARAMS_FILE, fix="Use auto or cpu")
        if count > torch.cuda.device_count():
            what = f"the run has {count} processes on this host, and {torch.cuda.device_count()} GPUs are shown to it"
            fix = "Lower processes, raise meta.gpus in dvc.yaml if a flow runs it, or set device: cpu"
            raise ParamsError(what=what, where=PARAMS_FILE, fix=fix)
        torch.cuda.set_device(local)
    return device


def _command() -> list[str]:
    """Return the command of this process; a profile is made of the first process only."""
    main = sys.modules["__main__"]
    words = [one for one in sys.argv[1:] if one != "--profile"]
    if main.__spec__:
        return library_command(main.__spec__.name, *words)
    if not sys.argv[0]:
        fix = "Write it to a file and run that"
        raise PipelineError(what="other processes cannot run what was typed", where="processes", fix=fix)
    return [sys.executable, sys.argv[0], *words]


def _folder() -> Path:
    """Return a folder that only this user can enter, held by a lock until this process ends."""
    for old in Path(tempfile.gettempdir()).glob(f"{FOLDER}*"):  # of runs whose processes were all killed at once
        with contextlib.suppress(OSError):
            state = old.lstat()
            if state.st_uid == os.getuid() and time.time() - state.st_mtime > STALE_S:
                remove_unlocked(old)
    folder = Path(tempfile.mkdtemp(prefix=FOLDER))
    hold(folder / HELD, "the processes of a run")
    return folder
