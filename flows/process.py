"""Runs one command in a process group of its own, streams its lines, and leaves nobody of the group behind."""

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

from flows.guard import STEPS, Ending, Guard, alive

TAIL_LINES = 20
_POLL = 0.1
_LAST_READ = 1.0
_LINE_END = re.compile(r"\r\n|\n|\r")


class Why(Enum):
    """Why a command is over."""

    ENDED = "ended"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed out"


@dataclass(frozen=True)
class Exit:
    """How a command ended."""

    code: int
    why: Why
    seconds: float
    tail: tuple[str, ...]


@dataclass(frozen=True)
class Command:
    """What to run, where, and for how long at most."""

    words: Sequence[str]
    folder: Path
    env: Mapping[str, str]
    timeout: float | None = None


class Lines:
    """Cuts a stream of bytes into lines; a carriage return ends one too, so that progress bars show."""

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
        if line.strip():
            self.tail.append(line.rstrip())
            self._write(line.rstrip())


def run(command: Command, *, write: Callable[[str], None], cancel: threading.Event, guard: Guard) -> Exit:
    """Run to the end, or until `cancel` is set or the time is up; then its whole group is ended step by step."""
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
    lines = Lines(write)
    try:
        why = _follow(process, lines, cancel, None if command.timeout is None else start + command.timeout)
    finally:
        _sweep(process.pid)
        code = process.wait()
        guard.drop(process.pid)
    lines.close()
    return Exit(code, why, time.monotonic() - start, tuple(lines.tail))


def _follow(process: subprocess.Popen[bytes], lines: Lines, cancel: threading.Event, deadline: float | None) -> Why:
    """Pass the output on until the process has ended, pressing it to end where asked for."""
    assert process.stdout is not None
    why, ending, last_read = Why.ENDED, None, 0.0
    with process.stdout as stream, selectors.DefaultSelector() as selector:
        os.set_blocking(stream.fileno(), False)
        selector.register(stream, selectors.EVENT_READ)
        while True:
            # Asked before reading: what the process wrote before it ended is then in the pipe.
            if process.poll() is not None:
                last_read = last_read or time.monotonic() + _LAST_READ
            if selector.get_map() and selector.select(0 if last_read else _POLL):
                if not _read(stream.fileno(), lines):
                    selector.unregister(stream)
            elif last_read:
                return why
            elif not selector.get_map():
                time.sleep(_POLL)
            if last_read:
                # Somebody that it left behind may hold the pipe and write for ever.
                if time.monotonic() > last_read:
                    return why
            elif ending is not None:
                ending.press()
            elif (why := _why_end(cancel, deadline)) is not Why.ENDED:
                ending = Ending(process.pid)


def _why_end(cancel: threading.Event, deadline: float | None) -> Why:
    """The reason to end a running process now; `ENDED` is none."""
    if cancel.is_set():
        return Why.CANCELLED
    return Why.TIMED_OUT if deadline is not None and time.monotonic() > deadline else Why.ENDED


def _read(descriptor: int, lines: Lines) -> bool:
    """Read what is there; False at the end of the stream."""
    try:
        data = os.read(descriptor, 65536)
    except BlockingIOError:
        return True
    lines.feed(data)
    return bool(data)


def _sweep(group: int) -> None:
    """End what the leader of the group has left behind: it would write into outputs that DVC has already recorded."""
    grace = time.monotonic() + 0.5
    while alive(group) and time.monotonic() < grace:
        time.sleep(0.02)
    ending = Ending(group, STEPS[1:])
    while alive(group) and ending.press():
        time.sleep(0.05)
