"""What torch computes, operator by operator, on whatever device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

LISTED: Final = 25
LARGEST: Final = 64 * 2**20
"""A trace is cut off after so many bytes: browsers open no larger ones."""
HEADER: Final = (
    "| operator | calls | own CPU ms | with inner CPU ms | own device ms | own CPU MB | own device MB |",
    "|---|---|---|---|---|---|---|",
)


class Operators:
    """torch's profiler, with a span for each phase."""

    def __init__(self) -> None:
        from torch.profiler import profile, supported_activities

        self._profile: Any = profile(activities=supported_activities(), profile_memory=True)  # type: ignore[no-untyped-call]
        self._spans: list[Any] = []
        self._going = False

    def start(self) -> None:
        """Trace from here on."""
        self._profile.start()
        self._going = True

    def stop(self) -> None:
        """Trace no further."""
        while self._spans:
            self._spans.pop().__exit__(None, None, None)
        self._going = False
        self._profile.stop()

    def entered(self, name: str) -> None:
        """A phase begins."""
        if self._going:
            from torch.profiler import record_function

            span = record_function(f"phase: {name}")
            span.__enter__()  # type: ignore[no-untyped-call]
            self._spans.append(span)

    def left(self, name: str) -> None:  # noqa: ARG002
        """A phase ends."""
        if self._spans:
            self._spans.pop().__exit__(None, None, None)

    def write(self, file: Path) -> None:
        """The trace, for chrome://tracing or ui.perfetto.dev."""
        self._profile.export_chrome_trace(str(file))
        shorten(file, LARGEST)

    def page(self) -> list[str]:
        """The operators that took most of the time."""
        every = [one for one in self._profile.key_averages() if not one.key.startswith("phase: ")]
        device = sum(one.self_device_time_total for one in every) > 0
        spent: Callable[[Any], float] = (
            (lambda one: one.self_device_time_total) if device else (lambda one: one.self_cpu_time_total)
        )
        where = "the device" if device else "the CPU"
        lines = [f"## Operators by their own time on {where}", "", *HEADER]
        for one in sorted(every, key=spent, reverse=True)[:LISTED]:
            times = (one.self_cpu_time_total, one.cpu_time_total, one.self_device_time_total)
            memory = (one.self_cpu_memory_usage, one.self_device_memory_usage)
            cells = [f"{part / 1e3:.2f}" for part in times] + [f"{part / 2**20:.1f}" for part in memory]
            lines.append(f"| {one.key} | {one.count} | {' | '.join(cells)} |")
        return lines


def shorten(file: Path, largest: int) -> None:
    """Cut a trace off after the event in which it becomes too large; it stays a whole JSON document."""
    if file.stat().st_size <= largest:
        return
    short, size, inside = file.with_name(f"{file.name}.short"), 0, False
    with file.open(encoding="utf-8") as whole, short.open("w", encoding="utf-8") as cut:
        for line in whole:
            inside = inside or '"traceEvents"' in line
            size += len(line)
            if inside and size > largest and line.rstrip() == "  },":
                cut.write("  }\n  ]\n}\n")
                break
            cut.write(line)
    short.replace(file)
