"""The processes of a run on this host: how they are started, watched and ended.

The stage's own process is the first of the run. It holds the lock, writes all files and starts the others as its
children, with the same command. If one of them ends, all end; if their parent ends, they end by themselves.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from posttrain.errors import ParamsError, PipelineError, PosttrainError
from posttrain.workspace import HELD, PARAMS_FILE, hold, library_command, library_environment, remove_unlocked

RANK, SIZE, LOCAL, MEETING, PARENT = (
    f"POSTTRAIN_{name}" for name in ("RANK", "PROCESSES", "LOCAL_RANK", "RENDEZVOUS", "PARENT")
)
"""Environment of the processes that another one starts: its number, how many there are, its number on this host, where
they meet (file:///... on one host, tcp://host:port between hosts), and the process that started it."""
POLL_S: Final = 0.2
"""How often a process looks whether the others live."""
GRACE_S: Final = 1.5
"""How long the first process may take to report an error of its own after another one has ended."""
LEAVING_S: Final = 5.0
"""How long the others may take to end after the run is done."""
STALE_S: Final = 60.0
"""The age from which a folder that no process holds counts as left by a killed run."""
TAIL: Final = 40
"""Lines of a process's output that are shown if it ended without an error line."""
FOLDER: Final = f"posttrain-run-{os.getuid()}-"
LOOPBACK: Final = "lo0" if sys.platform == "darwin" else "lo"
LOST: Final = re.compile(r"gloo|NCCL|(connection|socket).{0,20}(closed|reset|refused)|broken pipe", re.I)
"""How torch words that another process is gone."""
RANKED: Final = re.compile(r"^\[rank\d+\]: ?")
"""What torch puts before the lines of a traceback."""
RESUME: Final = "The next run resumes from the last checkpoint, where there is one"
MEMORY: Final = "The system may have killed it because memory ran out"


def is_worker() -> bool:
    """Whether this process was started by another one of its run."""
    return os.environ.get(RANK, "0") != "0"


def follow() -> None:
    """End when the process that started this one ends; signals to the whole group are for that one to answer.

    `stages` calls it before torch is imported, so that a run that is killed while it starts leaves nothing either.
    """
    if not is_worker() or any(thread.name == PARENT for thread in threading.enumerate()):
        return
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, name=PARENT, daemon=True).start()
    atexit.register(_remove_after_parent)


def _end_with_parent() -> None:
    while _has_parent():
        time.sleep(POLL_S)
    _remove_after_parent()
    os._exit(1)


def _has_parent() -> bool:
    return str(os.getppid()) == os.environ.get(PARENT, "")


def _remove_after_parent() -> None:
    """Remove the run's folder if its first process was killed, which this one may have noticed by a lost connection."""
    until = time.monotonic() + POLL_S
    while _has_parent():
        if time.monotonic() > until:
            return
        time.sleep(0.02)
    _remove(Path(os.environ.get(MEETING, "").removeprefix("file://")).parent)


@dataclass(frozen=True)
class Death:
    """How a process ended before the run did."""

    order: int
    """0: killed; 1: by an error of its own; 2: because it lost another process."""
    what: str
    output: str
    """The end of its output, if that has no error line."""

    def error(self, run: str) -> PipelineError:
        """The death as the failure of the run."""
        fix = f"{MEMORY}. {RESUME}" if "SIGKILL" in self.what else RESUME
        return PipelineError(what=self.what, where=run, fix=fix)


class Children:
    """The processes of a run that this process has started."""

    def __init__(self, command: Sequence[str], size: int, numbers: range, meeting: str) -> None:
        """`numbers`: the numbers of this host's processes in the run, of which this process may be the first, 0."""
        self._started: dict[int, tuple[subprocess.Popen[bytes], IO[bytes]]] = {}
        self._size = size
        for number in numbers:
            if number == 0:
                continue
            place = {RANK: number, SIZE: size, LOCAL: number - numbers.start, MEETING: meeting, PARENT: os.getpid()}
            env = library_environment() | {name: str(value) for name, value in place.items()}
            env |= {"POSTTRAIN_PROFILE": "0", **network(meeting)}
            output = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the child, and without a name
            child = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
            self._started[number] = (child, output)

    def deaths(self) -> list[Death]:
        """Those that ended, other than by the end of their work."""
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
            return Death(0, f"{name} was ended by signal {-status} ({signal.Signals(-status).name})", "")
        said = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        line = said[-1] if said else lines[-1] if lines else "it printed nothing"
        order = 2 if not said and LOST.search(line) else 1
        return Death(order, f"{name} ended with exit code {status}: {line}", "" if said else "\n".join(lines[-TAIL:]))

    def ended(self, patience_s: float) -> bool:
        """Whether all have ended in time."""
        until = time.monotonic() + patience_s
        while any(child.poll() is None for child, _ in self._started.values()):
            if time.monotonic() > until:
                return False
            time.sleep(0.02)
        return True

    def kill(self) -> None:
        """End those that still run, at once."""
        for child, _ in self._started.values():
            child.kill()
        for child, _ in self._started.values():
            child.wait()


class _Run:
    """The run whose first process this is."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.children: Children | None = None
        self.folder = Path()
        self.over = threading.Event()
        self.reporting = threading.Lock()
        """Held by the one thread that reports why the run ends."""

    def watch(self) -> None:
        """Report the death of a process although the main thread may wait for it for hours."""
        while not self.deaths():
            if self.over.wait(POLL_S):
                return
        if not self.over.wait(GRACE_S) and self.reporting.acquire(blocking=False):
            death = min(self.deaths(), key=lambda one: one.order)
            error = death.error(self.name)
            if death.output:
                print(death.output, file=sys.stderr)
            print(f"error: {error}", file=sys.stderr, flush=True)
            for save in _ON_DEATH:
                save(str(error))
            self.end()
            os._exit(1)

    def deaths(self) -> list[Death]:
        return self.children.deaths() if self.children else []

    def end(self) -> None:
        if self.children:
            self.children.kill()
        _remove(self.folder)


_RUN: list[_Run] = []
_ON_DEATH: list[Callable[[str], Any]] = []


def on_death(save: Callable[[str], Any]) -> None:
    """Call this with the error line if the run ends because a process has ended."""
    _ON_DEATH[:] = [save]


def start(name: str, processes: int, device: str) -> None:
    """Start the other processes of the run and meet them; in one of those, meet the first one."""
    if processes == 1:
        return
    from posttrain.processes import connect

    if is_worker():
        follow()
        number, size, local = (int(os.environ[one]) for one in (RANK, SIZE, LOCAL))
        connect(number, size, os.environ[MEETING], _device(device, local))
        return
    device = _device(device, 0, processes)
    _RUN.append(run := _Run(name))
    atexit.register(end)
    run.folder = _folder()
    meeting = f"file://{run.folder / 'meeting'}"
    run.children = Children(_command(), processes, range(processes), meeting)
    threading.Thread(target=run.watch, daemon=True).start()
    os.environ |= network(meeting)
    connect(0, processes, meeting, device)


def network(meeting: str) -> dict[str, str]:
    """On one host, processes talk through the loopback interface, which nobody else reaches."""
    return {"GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", LOOPBACK)} if meeting[:5] == "file:" else {}


def end() -> None:
    """End what is left of the run's other processes and remove their folder."""
    for run in _RUN:
        if run.children and run.over.is_set():
            run.children.ended(LEAVING_S)
        run.over.set()
        run.end()


@contextlib.contextmanager
def explained_deaths() -> Iterator[None]:
    """An error of the work that comes from the death of another process becomes that death."""
    try:
        yield
    except BaseException as error:
        for run in _RUN:
            _claim(run)
            if death := _behind(error, run):
                if death.output:
                    print(death.output, file=sys.stderr)
                raise death.error(run.name) from error
        raise
    for run in _RUN:
        _claim(run)
        run.over.set()


def _claim(run: _Run) -> None:
    """Become the thread that reports; if the watch already does, wait for it to end this process."""
    if not run.reporting.acquire(blocking=False):
        threading.Event().wait()


def _behind(error: BaseException, run: _Run) -> Death | None:
    """The death that an error comes from; an error that a person can fix is its own reason, unless one was killed."""
    if isinstance(error, PosttrainError):
        return next((one for one in run.deaths() if one.order == 0), None)
    if not isinstance(error, Exception) or not LOST.search(str(error)):
        return None
    run.over.wait(GRACE_S)
    return min(run.deaths(), key=lambda one: one.order, default=None)


def _device(device: str, local: int, count: int = 1) -> str:
    """The device of this process, chosen where there are several."""
    import torch

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "mps":
        what = "several processes cannot share a device of kind mps"
        raise ParamsError(what=what, where=PARAMS_FILE, fix="Set processes: 1, or device: cpu")
    if device == "cuda" and torch.cuda.is_available():
        if count > torch.cuda.device_count():
            what = f"the run has {count} processes on this host, which has {torch.cuda.device_count()} GPUs"
            raise ParamsError(what=what, where=PARAMS_FILE, fix="Lower processes, or set device: cpu")
        torch.cuda.set_device(local)
    return device


def _command() -> list[str]:
    """The command of this process; a profile is made of the first process only."""
    main = sys.modules["__main__"]
    words = [one for one in sys.argv[1:] if one != "--profile"]
    if main.__spec__:
        return library_command(main.__spec__.name, *words)
    if not sys.argv[0]:
        fix = "Write it to a file and run that"
        raise PipelineError(what="other processes cannot run what was typed", where="processes", fix=fix)
    return [sys.executable, sys.argv[0], *words]


def _folder() -> Path:
    """A folder that only this user can enter, held by a lock until this process ends."""
    for old in Path(tempfile.gettempdir()).glob(f"{FOLDER}*"):  # of runs whose processes were all killed at once
        with contextlib.suppress(OSError):
            state = old.lstat()
            if state.st_uid == os.getuid() and time.time() - state.st_mtime > STALE_S:
                remove_unlocked(old)
    folder = Path(tempfile.mkdtemp(prefix=FOLDER))
    hold(folder / HELD, "the processes of a run")
    return folder


def _remove(folder: Path) -> None:
    if folder.name.startswith(FOLDER):
        shutil.rmtree(folder, ignore_errors=True)
