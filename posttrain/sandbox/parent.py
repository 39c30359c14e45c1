"""Start isolated processes, enforce their limits, and end them."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
ZYGOTE: Final = "posttrain.sandbox.fork_server"
START: Final = """
import importlib, sys, types
package = types.ModuleType("posttrain")  # without its __init__, which needs packages that programs must not see
package.__path__ = [sys.argv[3]]
sys.modules["posttrain"] = package
importlib.import_module(sys.argv[4]).main()
"""
SEALS: Final = 0x0F
"""No more seals, no shrinking, no growing, no writing."""
TICK: Final = 0.02
"""Seconds between checks of a process's time and threads."""
STARTED_IN: Final = 30.0
"""Seconds within which the sandbox must start."""
CLOCK: Final = 100
"""The kernel's ticks per second in /proc, which are the same on every Linux architecture."""
ISOLATED: Final = ("namespaces", "landlock", "seccomp")


class SandboxError(RuntimeError):
    """Programs cannot be isolated on this machine."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(f"{what}. {fix}")
        self.what, self.fix = what, fix


class SandboxFailed(Exception):  # noqa: N818  it says what happened to a program's run
    """The sandbox broke, and the program is not to blame."""


@dataclass(frozen=True)
class Limits:
    """The limits of a program."""

    seconds: float = 5.0
    """CPU seconds. Wall time may be four times as long, for a machine with other work."""
    memory: int = 512 * 2**20
    scratch: int = 16 * 2**20
    files: int = 256
    """The number of files in the scratch folder."""
    output: int = 2**20
    threads: int = 32
    open_files: int = 64

    @property
    def wall(self) -> float:
        """Seconds of wall time."""
        return 4 * self.seconds


def kernel_kills() -> int:
    """Return the number of processes that the kernel has killed for lack of memory."""
    file = Path("/proc/vmstat")
    words = file.read_text(encoding="ascii").split() if file.exists() else []
    return int(words[words.index("oom_kill") + 1]) if "oom_kill" in words else 0


@dataclass
class Process:
    """An isolated process."""

    pid: int
    handle: int
    """A file descriptor that becomes readable when the process has ended."""
    report: bytes = b""
    """Its output before it ran the program, and the tests' verdict."""
    used: dict[str, Any] = field(default_factory=dict)
    """How it ended, its CPU seconds and its memory."""
    kills: int = field(default_factory=kernel_kills)
    """The number of processes that the kernel had killed for lack of memory before it began."""

    @property
    def starved(self) -> bool:
        """True if the kernel has killed processes for lack of memory since it began."""
        return kernel_kills() > self.kills

    @property
    def verdict(self) -> bytes:
        """Return its report after it was ready. Raise SandboxFailed if it was never ready."""
        ready, line, rest = self.report.partition(b"\n")
        if ready != b"ready":
            raise SandboxFailed(f"a process did not start: {self.report[:300].decode(errors='replace')}")
        return rest if line else b""


class Sandbox:
    """A process, isolated from this one, that starts programs. If it is not `alive`, create another.

    `faults` maps each kernel mechanism to the reason why it is missing, or to an empty text. Unless `refuses` is set,
    the mechanisms that exist are sufficient.
    """

    def __init__(self, isolated: bool = True, refuses: bool = True) -> None:  # noqa: FBT001, FBT002
        if sys.platform != "linux":
            raise _refusal(f"{sys.platform} has none of {', '.join(ISOLATED)}")
        self._lock, self._lost = threading.Lock(), False
        self._base = tempfile.mkdtemp(prefix="posttrain-sandbox-")
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(STARTED_IN)
        number = str(theirs.fileno())
        words = [sys.executable, "-s", "-S", "-B", "-c", START, number, "isolated" if isolated else "open"]
        environment = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0", "MALLOC_ARENA_MAX": "1"}
        environment |= {"HOME": "/tmp/scratch", "TMPDIR": "/tmp/scratch"} if isolated else {}
        with theirs:
            self._process = subprocess.Popen(
                [*words, str(ROOT / "posttrain"), ZYGOTE],
                cwd=self._base,
                env=environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
        self.faults: dict[str, str] = self._started()
        if isolated and refuses and not self.holds:
            self.close()
            why = "; ".join(f"{name}: {why}" for name, why in self.faults.items() if why)
            raise _refusal(why)

    def _started(self) -> dict[str, str]:
        """Return the process's first message."""
        try:
            message = self._control.recv(2**16)
        except OSError:
            message = b""
        if not message:
            self._process.kill()
            said = self._process.stderr.read().decode(errors="replace").strip() if self._process.stderr else ""
            self.close()
            raise SandboxFailed(f"the sandbox did not start: {said[-300:]}")
        faults: dict[str, str] = json.loads(message)
        return faults

    @property
    def mechanisms(self) -> list[str]:
        """The isolation mechanisms of the kernel that are in use."""
        return [name for name, why in self.faults.items() if not why]

    @property
    def holds(self) -> bool:
        """True if programs are isolated: files by either mechanism, everything else by seccomp."""
        return "seccomp" in self.mechanisms and bool({"namespaces", "landlock"} & {*self.mechanisms})

    @property
    def alive(self) -> bool:
        """True if the process can start programs."""
        return not self._lost and self._process.poll() is None

    @contextlib.contextmanager
    def process(self, kind: str, source: str, files: Mapping[str, int], limits: Limits) -> Iterator[Process]:
        """Yield an isolated process with these files. At the end it is killed, and `report` and `used` are set."""
        read, write = os.pipe()
        process = None
        try:
            with sealed(source) as text:
                given = {**files, "source": text, "report": write}
                request = {"kind": kind, "fds": list(given), **asdict(limits)}
                answer = self._ask(request, list(given.values()))
            os.close(write)
            write = -1
            if "failed" in answer:
                raise SandboxFailed(answer["failed"])
            process = Process(answer["pid"], os.pidfd_open(answer["pid"]))
            yield process
        finally:
            if process is not None:
                os.close(process.handle)
                process.used = self._ask({"end": process.pid}, [])
                with os.fdopen(read, "rb", closefd=False) as pipe:
                    process.report = pipe.read()
            for end in (read, write):
                if end >= 0:
                    os.close(end)

    def _ask(self, request: Mapping[str, Any], files: Sequence[int]) -> dict[str, Any]:
        with self._lock:
            message = b""
            try:
                socket.send_fds(self._control, [json.dumps(request).encode()], files)
                message = self._control.recv(2**16)
            except OSError as error:
                raise SandboxFailed(f"the sandbox does not answer: {error}") from error
            finally:
                if not message:  # an answer that comes later must not be taken for that to another request
                    self._lost = True
                    self._process.kill()
        if not message:
            raise SandboxFailed("the sandbox has ended")
        answer: dict[str, Any] = json.loads(message)
        return answer

    def watch(self, process: Process, others: Sequence[Process], pipes: Mapping[int, bytearray], limits: Limits) -> str:
        """Read the pipes until the process ends. Return the reason why it was stopped; empty if it was not stopped."""
        start = time.monotonic()
        poll = select.poll()
        for descriptor in (process.handle, *pipes):
            poll.register(descriptor, select.POLLIN)
        while True:
            ready = {number for number, _ in poll.poll(TICK * 1000)}
            for pipe in ready & pipes.keys():
                pipes[pipe].extend(os.read(pipe, 2**16))
            if any(len(output) > limits.output for output in pipes.values()):
                return f"more than {limits.output:,} bytes of output"
            if process.handle in ready and not ready & pipes.keys():
                return ""
            waited = sum(_waited(child) for child in (process, *others))  # a busy machine is no fault of the program
            if time.monotonic() - start - waited > limits.wall:
                return f"longer than {limits.wall:g} seconds"
            for running in (process, *others):
                if why := _over(running, limits):
                    return why

    def close(self) -> None:
        """End the sandbox with everything in it."""
        self._control.close()
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        if self._process.stderr:
            self._process.stderr.close()
        shutil.rmtree(self._base, ignore_errors=True)

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


@contextlib.contextmanager
def sealed(text: str) -> Iterator[int]:
    """Yield a file in memory that nobody can change."""
    import fcntl

    number = os.memfd_create("input", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        rest = memoryview(text.encode("utf-8", "surrogatepass"))
        while rest:
            rest = rest[os.write(number, rest) :]
        os.lseek(number, 0, os.SEEK_SET)
        fcntl.fcntl(number, fcntl.F_ADD_SEALS, SEALS)
        yield number
    finally:
        os.close(number)


def _over(process: Process, limits: Limits) -> str:
    """Return which limit a process has exceeded."""
    try:
        fields = (
            Path(f"/proc/{process.pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        )
    except (FileNotFoundError, ProcessLookupError):  # it has ended
        return ""
    if (int(fields[11]) + int(fields[12])) / CLOCK > limits.seconds:
        return f"more than {limits.seconds:g} seconds of processor time"
    if int(fields[17]) > limits.threads:
        return f"more than {limits.threads} threads"
    return ""


def _waited(process: Process) -> float:
    """Return the seconds for which a process could run but had no CPU."""
    try:
        return int(Path(f"/proc/{process.pid}/schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    except (FileNotFoundError, ProcessLookupError):  # it has ended, or this kernel does not count
        return 0.0


def _refusal(why: str) -> SandboxError:
    return SandboxError(
        what=f"this machine cannot isolate programs ({why})",
        fix="Use Linux 6.2 or newer, or allow user namespaces; or set `sandbox: none` if you trust the programs "
        "(docs/rewards.md)",
    )
