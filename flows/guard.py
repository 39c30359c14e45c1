"""Ends the process groups of stages: on request, and all that are left when the flow itself has been killed.

Runs as a process of its own (`python -I -S guard.py`, standard library only): it reads '+PGID' and '-PGID' lines from
its standard input, and the end of that input means that the flow is gone, however it went.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from types import TracebackType

# What is sent, and how many seconds it is given before the next: a stage may save its state on the first.
STEPS = ((signal.SIGINT, 5.0), (signal.SIGTERM, 3.0), (signal.SIGKILL, 2.0))


class Ending:
    """Ends one process group step by step, without blocking: call `press` again until the group is gone."""

    def __init__(self, group: int, steps: tuple[tuple[signal.Signals, float], ...] = STEPS) -> None:
        self.group, self._left, self._next = group, list(steps), 0.0

    def press(self) -> bool:
        """Send the next signal when it is due; False once there is nobody or nothing left to send."""
        now = time.monotonic()
        if now >= self._next:
            if not self._left:
                return False
            number, patience = self._left.pop(0)
            self._next = now + patience
            return send(self.group, number)
        return alive(self.group)


def send(group: int, number: int) -> bool:
    """Signal a whole process group; False when it is empty."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def alive(group: int) -> bool:
    """Whether a process group still has a member."""
    return send(group, 0)


class Guard:
    """The flow's end of the pipe: tells the guard process which groups are running."""

    def __enter__(self) -> Guard:
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
        """From now on this group must not outlive the flow."""
        self._tell(f"+{group}\n")

    def drop(self, group: int) -> None:
        """This group is gone; its number may be given to somebody else."""
        self._tell(f"-{group}\n")

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        # One write of a short line is atomic, so that threads need no lock here.
        os.write(self._process.stdin.fileno(), line.encode())


def main() -> None:
    """Keep the list until the input ends, then end what is left."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        group = int(line[1:])
        groups.add(group) if line[0] == "+" else groups.discard(group)
    endings = [Ending(group) for group in groups]
    while endings:
        endings = [ending for ending in endings if ending.press()]
        time.sleep(0.05)


if __name__ == "__main__":
    main()
