"""A child process that answers JSON lines within time limits, and is killed with everything it started."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any


class DiedError(Exception):
    """The child ended before it answered. `code`: its exit code."""

    def __init__(self, what: str, code: int = 0) -> None:
        super().__init__(what)
        self.code = code


class TooSlowError(Exception):
    """The child did not answer in time."""


class Child:
    """One child process. It is killed when nothing refers to it any more.

    Example: `Child([sys.executable, "worker.py"], os.environ).ask({"text": "a"}, seconds=5.0)`
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], *, silent: bool = False) -> None:
        """`silent`: discard its stderr."""
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if silent else None,
            env=environment,
            start_new_session=True,  # so that it can be killed with all that it started
        )
        self.pid = self._process.pid
        self._buffer = b""
        self._owner = os.getpid()
        self.kill = weakref.finalize(self, _kill, self._process, self._owner)

    @property
    def alive(self) -> bool:
        """True if it runs and belongs to this process. After a fork, the pipes belong to the parent."""
        return self._owner == os.getpid() and self._process.poll() is None

    def ask(self, request: Any, seconds: float | None = None) -> Any:
        """Return the answer to a request. Raise if the child dies or takes too long."""
        deadline = None if seconds is None else time.monotonic() + seconds
        pipe = self._process.stdin
        assert pipe is not None
        try:
            pipe.write(json.dumps(request).encode() + b"\n")
            pipe.flush()
        except BrokenPipeError:
            raise self._died() from None
        return json.loads(self._line(deadline))

    def _line(self, deadline: float | None) -> bytes:
        pipe = self._process.stdout
        assert pipe is not None
        while b"\n" not in self._buffer:
            left = None if deadline is None else max(deadline - time.monotonic(), 0)
            ready, _, _ = select.select([pipe], [], [], left)
            if not ready:
                raise TooSlowError("it did not answer in time")
            part = os.read(pipe.fileno(), 1 << 20)
            if not part:
                raise self._died()
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _died(self) -> DiedError:
        code = self._process.wait()
        return DiedError(f"killed by signal {-code}" if code < 0 else f"exit status {code}", code)


def _kill(process: subprocess.Popen[bytes], owner: int) -> None:
    """Kill a process with everything it started. A forked copy of its parent does nothing."""
    if owner != os.getpid():
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):  # what was not read yet is flushed
                pipe.close()
