"""What Python computes, function by function, in a stage that needs no torch."""

from __future__ import annotations

import cProfile
import json
import os
import pstats
import time
from pathlib import Path
from typing import Any, Final

LISTED: Final = 25


class Functions:
    """Python's own profiler, with a span for each phase."""

    def __init__(self) -> None:
        self._profile = cProfile.Profile()
        self._open: list[float] = []
        self._spans: list[dict[str, Any]] = []

    def start(self) -> None:
        """Count from here on."""
        self._profile.enable()

    def stop(self) -> None:
        """Count no further."""
        self._profile.disable()

    def entered(self, name: str) -> None:  # noqa: ARG002
        """A phase begins."""
        self._open.append(time.perf_counter())

    def left(self, name: str) -> None:
        """A phase ends."""
        began = self._open.pop()
        length = time.perf_counter() - began
        place = {"pid": os.getpid(), "tid": 0}
        self._spans.append({"ph": "X", "name": f"phase: {name}", "ts": began * 1e6, "dur": length * 1e6, **place})

    def write(self, file: Path) -> None:
        """The phases as a trace, for chrome://tracing or ui.perfetto.dev."""
        file.write_text(json.dumps({"traceEvents": self._spans}), encoding="utf-8")

    def page(self) -> list[str]:
        """The functions that took most of the time."""
        lines = [
            "## Functions by their own time",
            "",
            "| function | calls | own ms | with inner ms |",
            "|---|---|---|---|",
        ]
        stats: dict[Any, Any] = pstats.Stats(self._profile).stats  # type: ignore[attr-defined]
        for (place, line, name), (_, calls, own, total, _) in sorted(stats.items(), key=lambda one: -one[1][2])[
            :LISTED
        ]:
            where = name if place == "~" else f"{'/'.join(Path(place).parts[-2:])}:{line} {name}"
            lines.append(f"| {where.replace('|', ' ')} | {calls} | {own * 1e3:.2f} | {total * 1e3:.2f} |")
        return lines
