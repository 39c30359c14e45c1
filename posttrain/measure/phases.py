"""Measure a stage's time: each second of its main thread belongs to the innermost active phase, or to `other`.

GPU work is asynchronous, and a phase does not wait for it. Seconds belong to the phase in which the process waits.
Sampling, scoring and every update end with a copy to the host, so little time moves to the next phase.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ContextDecorator
from typing import Final, Literal, Protocol, get_args

Name = Literal["load", "generate", "reward", "reference", "train", "write"]
NAMES: Final[tuple[Name, ...]] = get_args(Name)
OTHER: Final = "other"


class Watcher(Protocol):
    """An observer that is notified when a phase begins and ends."""

    def entered(self, name: str) -> None: ...

    def left(self, name: str) -> None: ...


class Clock:
    """The seconds of each phase since the clock was created. The time before `begin` is loading."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._mark = now()
        self._spent = dict.fromkeys((*NAMES, OTHER), 0.0)
        self._going: list[str] = []
        self._rest: str = "load"
        self.watchers: list[Watcher] = []
        self.moved = time.monotonic()
        """When a phase last began or ended, or work advanced."""
        self.starts = 1

    def begin(self) -> None:
        """Mark the start of the stage's own work, after its imports."""
        self._charge()
        self.moved = time.monotonic()
        self._rest = OTHER

    def enter(self, name: Name) -> None:
        """Enter a phase. The surrounding phase is paused."""
        self._charge()
        self._going.append(name)
        self.moved = time.monotonic()
        for watcher in self.watchers:
            watcher.entered(name)

    def leave(self, name: Name) -> None:
        """Leave the innermost phase."""
        for watcher in reversed(self.watchers):
            watcher.left(name)
        self._charge()
        self._going.pop()
        self.moved = time.monotonic()

    @property
    def current(self) -> str:
        """The innermost phase."""
        return next(iter(self._going[-1:]), self._rest)

    def seconds(self) -> dict[str, float]:
        """Return the seconds of every phase so far, including earlier starts of the run."""
        self._charge()
        return dict(self._spent)

    def skip(self) -> None:
        """Exclude the time since the last call, because it was spent on measuring."""
        self._mark = self._now()

    def add(self, seconds: dict[str, float], starts: int) -> None:
        """Add the seconds of earlier starts of the stage in the same run."""
        self._spent = {name: spent + seconds.get(name, 0.0) for name, spent in self._spent.items()}
        self.starts += starts

    def _charge(self) -> None:
        now = self._now()
        self._spent[self._going[-1] if self._going else self._rest] += now - self._mark
        self._mark = now


CLOCK: Final = Clock()
"""The clock of this process. `stages` imports it first."""


class Phase(ContextDecorator):
    """A block or function whose time belongs to one phase."""

    def __init__(self, name: Name) -> None:
        self._name = name

    def __enter__(self) -> None:
        if _in_main_thread():
            CLOCK.enter(self._name)

    def __exit__(self, *raised: object) -> None:
        if _in_main_thread():
            CLOCK.leave(self._name)


def _in_main_thread() -> bool:
    """Tell whether this is the main thread. The time of other threads is not measured."""
    return threading.current_thread() is threading.main_thread()


def phase(name: Name) -> Phase:
    """Return a phase: `with phase("train"):` or `@phase("train")`."""
    return Phase(name)
