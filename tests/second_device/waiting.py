"""Where the host waits for the device, and whether a graph is captured meanwhile."""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Iterator

Wait = tuple[str, str]
"""What waits, and file:line."""


class _Watch:
    def __init__(self) -> None:
        self.seen: list[Wait] | None = None
        self.mode = "default"
        self.captures = 0

    def waited(self, what: str) -> None:
        """Note a wait of the host, which a capture and the mode `error` refuse."""
        if self.captures:
            raise RuntimeError(f"CUDA error: operation not permitted when stream is capturing ({what})")
        if self.seen is not None:
            self.seen.append((what, _place()))
        if self.mode == "error":
            raise RuntimeError(f"called a synchronizing CUDA operation ({what})")


WATCH = _Watch()


def _place() -> str:
    """The line of the project that asks, or else the last one outside torch."""
    frames = [
        one for one in traceback.extract_stack() if not {"torch", "second_device"} & {*one.filename.split("/")[:-1]}
    ]
    own = [one for one in frames if "site-packages" not in one.filename] or frames
    return f"{os.path.relpath(own[-1].filename)}:{own[-1].lineno}" if own else "?"


@contextlib.contextmanager
def waits() -> Iterator[list[Wait]]:
    """Where the host waits for the device inside, in order."""
    before, WATCH.seen = WATCH.seen, []
    try:
        yield WATCH.seen
    finally:
        WATCH.seen = before


@contextlib.contextmanager
def unwatched() -> Iterator[None]:
    """Neither note nor refuse the waits inside, which belong to the stand-in."""
    before = WATCH.seen, WATCH.captures, WATCH.mode
    WATCH.seen, WATCH.captures, WATCH.mode = None, 0, "default"
    try:
        yield
    finally:
        WATCH.seen, WATCH.captures, WATCH.mode = before
