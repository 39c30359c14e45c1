"""Run one command in its own process group, stream its lines, and end the whole group afterwards."""

from __future__ import annotations

import codecs
import os
import re
import selectors
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from posttrain.measure.masking import masked
from posttrain.measure.terminal import escaped

from .orphan_guard import TERMINATION_STEPS, GroupTermination, OrphanGuard, alive

TAIL_LINES = 20
_POLL = 0.1
_LAST_READ = 1.0
RUNNING: set[int] = set()
"""The process groups of the commands that run now."""
INTERRUPTED: list[int] = []
"""The signal that has interrupted this process's flow."""
_LINE_END = re.compile(r"\r\n|\n|\r")


class Reason(Enum):
    """The reason why a command has ended."""

    ENDED = "ended"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed out"


@dataclass(frozen=True)
class Exit:
    """The end of a command."""

    code: int
    reason: Reason
    seconds: float
    tail: tuple[str, ...]


@dataclass(frozen=True)
class Command:
    """A command with its folder, environment and time limit."""

    words: Sequence[str]
    folder: Path
    env: Mapping[str, str]
    timeout: float | None = None


class Lines:
    """Splits a byte stream into lines. A carriage return ends a line too, so that progress bars appear."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        self._rest, self._write = "", write
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)

    def feed(self, data: bytes) -> None:
        *lines, self._rest = _LINE_END.split(self._rest + self._decode(data))
        for line in lines:
            self._pass_on(line)

    def close(self) -> None:
        self._pass_on(self._rest)
        self._rest = ""

    def _pass_on(self, line: str) -> None:
        """Pass on a line without secrets and terminal codes. A stage's child may have bypassed its safe streams."""
        if line.strip():
            shown = escaped(masked(line.rstrip()))
            self.tail.append(shown)
            self._write(shown)


def run(
    command: Command, *, write: Callable[[str], None], cancel: threading.Event, guard: OrphanGuard,
    poll: Callable[[], None] = lambda: None,
) -> Exit:  # fmt: skip
    """Run until the command ends, `cancel` is set or the time limit is reached. Then end its whole group.

    `poll` is called repeatedly while it runs.
    """
    start = time.monotonic()
    process = subprocess.Popen(
        list(command.words),
        cwd=command.folder,
        env=dict(command.env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    guard.add(process.pid)
    RUNNING.add(process.pid)
    lines = Lines(write)
    try:
        deadline = None if command.timeout is None else start + command.timeout
        reason = _follow(process, lines, cancel, deadline, poll)
    finally:
        _end_group(process.pid)
        code = process.wait()
        guard.drop(process.pid)
        RUNNING.discard(process.pid)
    lines.close()
    return Exit(code, reason, time.monotonic() - start, tuple(lines.tail))


def _follow(
    process: subprocess.Popen[bytes], lines: Lines, cancel: threading.Event, deadline: float | None,
    poll: Callable[[], None],
) -> Reason:  # fmt: skip
    """Pass the output on until the process has ended. End it on cancellation or at the deadline."""
    assert process.stdout is not None
    reason, termination, last_read = Reason.ENDED, None, 0.0
    with process.stdout as stream, selectors.DefaultSelector() as selector:
        os.set_blocking(stream.fileno(), False)
        selector.register(stream, selectors.EVENT_READ)
        while True:
            poll()
            # Polled before reading: all output of an ended process is then in the pipe.
            if process.poll() is not None:
                last_read = last_read or time.monotonic() + _LAST_READ
            if selector.get_map() and selector.select(0 if last_read else _POLL):
                if not _read(stream.fileno(), lines):
                    selector.unregister(stream)
            elif last_read:
                return reason
            elif not selector.get_map():
                time.sleep(_POLL)
            if last_read:
                # A child of the process may hold the pipe open and write for ever.
                if time.monotonic() > last_read:
                    return reason
            elif termination is not None:
                termination.step()
            elif (reason := _reason_to_end(cancel, deadline)) is not Reason.ENDED:
                termination = GroupTermination(process.pid)


def _reason_to_end(cancel: threading.Event, deadline: float | None) -> Reason:
    """Return why to end a running process now; `ENDED` if there is no reason."""
    if cancel.is_set():
        return Reason.CANCELLED
    return Reason.TIMED_OUT if deadline is not None and time.monotonic() > deadline else Reason.ENDED


def _read(descriptor: int, lines: Lines) -> bool:
    """Read the available bytes. Return False at the end of the stream."""
    try:
        data = os.read(descriptor, 65536)
    except BlockingIOError:
        return True
    lines.feed(data)
    return bool(data)


def _end_group(group: int) -> None:
    """End children that the command left running. They could write into outputs that DVC has already recorded."""
    grace = time.monotonic() + 0.5
    while alive(group) and time.monotonic() < grace:
        time.sleep(0.02)
    termination = GroupTermination(group, TERMINATION_STEPS[1:])
    while alive(group) and termination.step():
        time.sleep(0.05)
