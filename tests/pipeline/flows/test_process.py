"""One command in a process group of its own."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from flows import process as module
from flows.orphan_guard import OrphanGuard
from flows.process import Command, Exit, Lines, Reason, run


def ran(script: str, tmp_path: Path, **more: Any) -> tuple[Exit, list[str]]:
    written: list[str] = []
    cancel = more.pop("cancel", threading.Event())
    with OrphanGuard() as guard:
        command = Command(["sh", "-c", script], tmp_path, {"PATH": os.environ["PATH"]}, more.pop("timeout", None))
        return run(command, write=written.append, cancel=cancel, guard=guard, **more), written


def test_output_and_exit_code(tmp_path: Path) -> None:
    polled: list[int] = []
    ended, written = ran("echo one; printf '1\\r2\\n'; pwd; exit 3", tmp_path, poll=lambda: polled.append(1))
    assert (ended.code, ended.reason, ended.tail) == (3, Reason.ENDED, ("one", "1", "2", str(tmp_path)))
    assert written == list(ended.tail) and 0 < ended.seconds < 60 and polled


def test_a_command_is_cancelled_or_times_out(tmp_path: Path) -> None:
    cancel = threading.Event()
    cancel.set()
    assert ran("exec sleep 300", tmp_path, cancel=cancel)[0].reason is Reason.CANCELLED
    ended, _ = ran("exec sleep 300", tmp_path, timeout=0.2)
    assert ended.reason is Reason.TIMED_OUT


def test_why_a_command_is_ended() -> None:
    cancel = threading.Event()
    assert module._reason_to_end(cancel, None) is Reason.ENDED and module._reason_to_end(cancel, 1e12) is Reason.ENDED
    assert module._reason_to_end(cancel, 0.0) is Reason.TIMED_OUT
    cancel.set()
    assert module._reason_to_end(cancel, None) is Reason.CANCELLED


def test_bytes_are_read_until_the_end(tmp_path: Path) -> None:
    lines = Lines(lambda _: None)
    source, sink = os.pipe()
    os.set_blocking(source, False)
    assert module._read(source, lines) is True, "nothing is there yet"
    os.write(sink, b"a\nb")
    assert module._read(source, lines) is True and list(lines.tail) == ["a"]
    os.close(sink)
    assert module._read(source, lines) is False
    lines.close()
    assert list(lines.tail) == ["a", "b"]
    os.close(source)
    with pytest.raises(FileNotFoundError):
        ran("true", tmp_path / "none")
