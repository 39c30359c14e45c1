"""A run of several processes. The stage's process is the first; it starts the others and watches them.

It holds the lock and writes all files. The other processes on its host are its children and run the same command. If
one of them ends, all end; if the first ends, the others end too.
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
from posttrain.isolation.library import library_command
from posttrain.locks import held_folder
from posttrain.measure.terminal import finish_streams
from posttrain.pipeline.processes.children import (
    FOLDER,
    GRACE_S,
    LEAVING_S,
    LOST,
    POLL_S,
    RESUME,
    Children,
    Death,
    follow,
    remove,
    remove_after_parent,
)
from posttrain.pipeline.processes.schedulers import (
    GLOO,
    LOCAL,
    MEETING,
    RANK,
    check_size,
    is_ranked,
    is_scheduled,
    network,
)
from posttrain.pipeline.workspace import PARAMS_FILE

AGENT_STORE: Final = "TORCHELASTIC_USE_AGENT_STORE"
"""torchrun's variable that would make process groups in a run's child processes, e.g. vLLM's, use torchrun's store."""
LOOPBACK: Final = "lo0" if sys.platform == "darwin" else "lo"


class _Run:
    """The run in its first process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.children: Children | None = None
        self.folder = Path()
        self.over = threading.Event()
        self.reporting = threading.Lock()
        """Held by the one thread that reports why the run ends."""

    def watch(self) -> None:
        """Report the death of a process, even while the main thread waits for that process."""
        while not self.deaths():
            if self.over.wait(POLL_S):
                return
        self.settle()
        if not self.over.is_set() and self.reporting.acquire(blocking=False):
            error = self.reason()
            print(f"error: {error}", file=sys.stderr, flush=True)
            for save in _ON_DEATH:
                save(str(error))
            self.end()
            os._exit(1)

    def settle(self) -> None:
        """Wait briefly for further deaths. A killed process is the likeliest cause."""
        until = time.monotonic() + GRACE_S
        while time.monotonic() < until and all(death.order for death in self.deaths()) and not self.over.wait(0.05):
            pass

    def deaths(self) -> list[Death]:
        """Return the processes that ended before the run."""
        return self.children.deaths() if self.children else []

    def reason(self, most: int = 2) -> PipelineError | None:
        """Return the likeliest cause among the deaths as an error, and print its output.

        `most`: the largest order to consider.
        """
        death = min(
            (candidate for candidate in self.deaths() if candidate.order <= most),
            key=lambda candidate: candidate.order,
            default=None,
        )
        if death and death.output:
            print(death.output, file=sys.stderr)
        return death.error(self.name) if death else None

    def end(self) -> None:
        """Kill all other processes."""
        self.over.set()
        if self.children:
            self.children.kill()
        remove(self.folder)


_RUN: list[_Run] = []
_ON_DEATH: list[Callable[[str], Any]] = []


def on_death(save: Callable[[str], Any]) -> None:
    """Call `save` with the error if another process of the run ends."""
    _ON_DEATH[:] = [save]


def start(name: str, processes: int, device: str) -> None:
    """Start the other processes of the run and connect. In a process of such a run, only connect."""
    check_size(name, processes)
    if processes == 1:
        return
    if is_ranked():
        follow()
        _meet(name, processes, _device(device, int(os.environ.get(LOCAL, "0"))))
        return
    from posttrain.distributed.world import connect

    device = _device(device, 0, processes)
    _RUN.append(run := _Run(name))
    atexit.register(abandon)
    run.folder = held_folder(FOLDER, Path(tempfile.gettempdir()), "the processes of a run")
    meeting, loopback = f"file://{run.folder / 'meeting'}", {GLOO: os.environ.get(GLOO, LOOPBACK)}
    run.children = Children(own_command(), processes, meeting, loopback)
    threading.Thread(target=run.watch, daemon=True).start()
    os.environ |= loopback
    connect(0, processes, meeting, device)


def _meet(name: str, processes: int, device: str) -> None:
    """Connect to the other processes. Another process or a scheduler has started them, as it started this one."""
    from posttrain.distributed.world import connect
    from posttrain.pipeline.processes.agreement import check_hosts

    scheduled = is_scheduled()
    os.environ |= network() if scheduled else {}
    connect(int(os.environ[RANK]), processes, os.environ.get(MEETING, "env://"), device)
    os.environ.pop(AGENT_STORE, None)
    if scheduled:
        check_hosts(name)


def end() -> None:
    """Finish the run: wait briefly for its other processes, then kill the remaining processes."""
    for run in _RUN:
        if run.children:
            run.children.ended(LEAVING_S)
        run.end()
    _RUN.clear()


def abandon() -> None:
    """End the other processes of a failed run."""
    for run in _RUN:
        run.end()


def end_failed(error: BaseException) -> None:
    """End this process at once if it is part of a run, because torch would need seconds to exit."""
    if not _RUN and not is_ranked():
        return
    code = error.code if isinstance(error, SystemExit) else 1
    if not isinstance(error, SystemExit):
        sys.excepthook(type(error), error, error.__traceback__)
    abandon()
    remove_after_parent()
    finish_streams()
    os._exit(code if isinstance(code, int) else 1)


@contextlib.contextmanager
def explained_deaths(stage: str) -> Iterator[None]:
    """Replace an error caused by another process's death with an error about that death."""
    try:
        yield
    except BaseException as error:
        for run in _RUN:
            _claim(run)
            if death := _behind(error, run):
                raise death from error
        if is_scheduled() and _is_loss(error):
            what = "another process of the run has ended; the output of srun or torchrun shows which and why"
            raise PipelineError(what=what, where=stage, fix=RESUME) from error
        raise
    for run in _RUN:
        _claim(run)
        run.over.set()


def _claim(run: _Run) -> None:
    """Make this thread the one that reports. If the watch already reports, wait for it to end this process."""
    if not run.reporting.acquire(blocking=False):
        threading.Event().wait()


def _behind(error: BaseException, run: _Run) -> PipelineError | None:
    """Return the death behind an error. A user-fixable error is its own cause, unless a process was killed."""
    if isinstance(error, PosttrainError):
        return run.reason(most=0)
    if not _is_loss(error):
        return None
    run.settle()
    return run.reason()


def _is_loss(error: BaseException) -> bool:
    """Tell whether torch has lost another process."""
    return isinstance(error, Exception) and not isinstance(error, PosttrainError) and bool(LOST.search(str(error)))


def _device(device: str, local: int, count: int = 1) -> str:
    """Return the device of this process; if there are several, choose one."""
    import torch

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "mps":
        what = "several processes cannot share an mps device"
        raise ParamsError(what=what, where=PARAMS_FILE, fix="Set processes: 1, or device: cpu")
    if device == "cuda":
        if not torch.cuda.is_available():
            raise ParamsError(what="device = cuda: no GPU was found", where=PARAMS_FILE, fix="Use auto or cpu")
        if count > torch.cuda.device_count():
            what = f"the run has {count} processes on this host, but can use only {torch.cuda.device_count()} GPUs"
            fix = "Lower processes, raise meta.gpus in dvc.yaml if a flow runs it, or set device: cpu"
            raise ParamsError(what=what, where=PARAMS_FILE, fix=fix)
        torch.cuda.set_device(local % torch.cuda.device_count())  # srun may show each its own alone
    return device


def own_command() -> list[str]:
    """Return the command of this process."""
    main = sys.modules["__main__"]
    if main.__spec__:
        return library_command(main.__spec__.name, *sys.argv[1:])
    if not sys.argv[0]:
        fix = "Write the code to a file and run the file"
        raise PipelineError(
            what="other processes cannot run code that was typed in a session", where="processes", fix=fix
        )
    return [sys.executable, *sys.argv]
