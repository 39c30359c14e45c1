"""End process groups of stages on request, and all remaining groups if the flow itself is killed.

The guard is a separate process (`python -I -S orphan_guard.py`, standard library only). It reads lines '+PGID' and
'-PGID' from standard input. The end of the input means that the flow has ended for any reason.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from types import TracebackType

# The signals, and the seconds until the next one: a stage may save its state on the first.
TERMINATION_STEPS = ((signal.SIGINT, 5.0), (signal.SIGTERM, 3.0), (signal.SIGKILL, 2.0))


class GroupTermination:
    """Ends a process group with one signal after another, without blocking: call `step` until the group has ended."""

    def __init__(self, group: int, steps: tuple[tuple[signal.Signals, float], ...] = TERMINATION_STEPS) -> None:
        self.group, self._left, self._next = group, list(steps), 0.0

    def step(self) -> bool:
        """Send the next signal when it is due. Return False once the group has ended or no signal is left."""
        now = time.monotonic()
        if now >= self._next:
            if not self._left:
                return False
            number, timeout = self._left.pop(0)
            self._next = now + timeout
            return send(self.group, number)
        return alive(self.group)


def send(group: int, number: int) -> bool:
    """Signal a whole process group. Return False if it is empty."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def alive(group: int) -> bool:
    """Tell whether a process group still has a member."""
    return send(group, 0)


class OrphanGuard:
    """Starts the guard process and tells it the running process groups."""

    def __enter__(self) -> OrphanGuard:
        command = [sys.executable, "-I", "-S", os.path.abspath(__file__)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def add(self, group: int) -> None:
        """Add a group that must not outlive the flow."""
        self._send(f"+{group}\n")

    def drop(self, group: int) -> None:
        """Remove a group that has ended, because the system may reuse its number."""
        self._send(f"-{group}\n")

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        # One write of a short line is atomic, so that threads need no lock.
        os.write(self._process.stdin.fileno(), line.encode())


def main() -> None:
    """Keep the list of groups until the input ends, then end the remaining groups."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        group = int(line[1:])
        groups.add(group) if line[0] == "+" else groups.discard(group)
    terminations = [GroupTermination(group) for group in groups]
    while terminations:
        terminations = [termination for termination in terminations if termination.step()]
        time.sleep(0.05)


if __name__ == "__main__":
    main()
