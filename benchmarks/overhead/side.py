"""One measurement in this process: python -m benchmarks.overhead.side SIDE BEGAN, the report on the last line.

BEGAN is the moment at which the process was started, so that the interpreter's own start counts.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, Final

ROWS: Final = 1_000_000
BASELINE: Final = ("torch", "transformers.models.qwen3.modeling_qwen3")
"""The least that a stage which trains has to import: torch and the module of the one model class."""

WARM: Final = 2
"""Updates that do as much as the next so many, and bring in late what the stage still needs."""


def imports(began: float) -> None:
    """torch and one model class, as a script would import them that does nothing else."""
    import importlib

    for name in BASELINE:
        importlib.import_module(name)
    report(began)


def collected(began: float) -> None:
    """The same under the garbage collector's settings of `stages/__init__.py`, which save it from needless rounds."""
    import gc

    gc.set_threshold(200_000, 20, 100)
    imports(began)


def stage(began: float, name: str, *arguments: str) -> None:
    """A stage from its start to its fourth update, and how much of that went into reading a model."""
    import runpy

    import stages  # noqa: F401  # first, as in `python -m stages.NAME`
    from posttrain.measure.phases import CLOCK
    from posttrain.models.files import store

    marks = Marks(began)
    CLOCK.watchers.append(marks)
    for read in ("_check_digests", "load_weights"):
        setattr(store, read, marks.timed(getattr(store, read)))
    sys.argv = [name, *arguments]
    runpy.run_module(f"stages.{name}", run_name="__main__", alter_sys=True)


class Marks:
    """When the first step begins, when updates end, and how long a model was read."""

    def __init__(self, began: float) -> None:
        self._began, self._first, self._reading = began, 0.0, 0.0
        self._updates: list[float] = []

    def entered(self, name: str) -> None:
        """A phase begins."""
        if name in ("generate", "train") and not self._first:
            self._first = time.process_time()

    def left(self, name: str) -> None:
        """A phase ends; with the fourth update all has been seen, which online is the second round's last."""
        if name == "train":
            self._updates.append(time.process_time())
            if len(self._updates) == 2 * WARM:
                warm, again = self._updates[WARM - 1], self._updates[-1]
                report(self._began, reading=self._reading, first=self._first, warm=warm, again=again)

    def timed(self, read: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, its time counted as reading."""

        def counted(*arguments: Any) -> Any:
            before = time.process_time()
            try:
                return read(*arguments)
            finally:
                self._reading += time.process_time() - before

        return counted


def tables(began: float, kind: Any) -> None:
    """The checks of a table of a million rows."""
    from pathlib import Path

    from benchmarks.overhead.tables import frame_of
    from posttrain.pipeline.tables.store import check_table

    frame = frame_of(kind, ROWS)
    cpu, wall = time.process_time(), time.perf_counter()
    check_table(frame, kind, Path(f"no-{kind}.parquet"))
    report(began, check_cpu=time.process_time() - cpu, check_wall=time.perf_counter() - wall)


def report(began: float, **seen: float) -> None:
    """Say what was measured, and end."""
    print(json.dumps({"cpu": time.process_time(), "wall": time.time() - began, **seen}), flush=True)
    os._exit(0)


def main(arguments: list[str]) -> int:
    side, *rest = arguments[0].split()
    sides: dict[str, Callable[..., None]] = {
        "imports": imports,
        "collected": collected,
        "stage": stage,
        "tables": tables,
    }
    sides[side](float(arguments[1]), *rest)
    return 1  # each side ends the process itself


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
