"""`--profile`: a trace of a stage's first steps, and a page that says where its time went.

The stage's results stay the same. A stage that uses torch is traced with torch's profiler, operator by operator on any
device; any other stage with cProfile, function by function.
"""

from __future__ import annotations

import cProfile
import io
import pstats
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from posttrain.measure.phases import CLOCK
from posttrain.measure.timings import device_peak_mb, peak_mb
from posttrain.workspace import atomic_path

FOLDER: Final = Path("profiles")
TRACED_STEPS: Final = 3
"""Optimizer steps in the trace: with all of them it could be gigabytes."""
LISTED: Final = 25
NOTE: Final = "Profiling slows a stage down: compare shares; for seconds see timings/ of a run without it."


@contextmanager
def profiled(stage: str) -> Iterator[None]:
    """Profile the block and write the profile even if it fails: online@grpo -> profiles/online/grpo/."""
    folder = FOLDER / stage.replace("@", "/")
    folder.mkdir(parents=True, exist_ok=True)
    tracer = _Operators() if "torch" in sys.modules else _Functions()
    try:
        yield
    finally:
        spent = CLOCK.seconds()
        table, total = tracer.end(folder), sum(spent.values())
        phases = "".join(f"| {name} | {one:.3f} | {one / max(total, 1e-9):.1%} |\n" for name, one in spent.items())
        gpu = f" and {device_peak_mb():.0f} MB on the GPU" if device_peak_mb() else ""
        page = f"# Profile of {stage}\n\n{total:.2f} s, at most {peak_mb():.0f} MB{gpu}. {NOTE}\n\n"
        page += f"| phase | seconds | share |\n|---|---|---|\n{phases}\n```\n{table}\n```\n"
        (folder / "profile.md").write_text(page, encoding="utf-8")
        print(f"{stage}: profile in {folder}/profile.md", file=sys.stderr)
        CLOCK.skip()


class _Functions:
    """Python's own profiler."""

    def __init__(self) -> None:
        self._profile = cProfile.Profile()
        self._profile.enable()

    def end(self, folder: Path) -> str:  # noqa: ARG002
        """The functions that took most of the time."""
        self._profile.disable()
        text = io.StringIO()
        pstats.Stats(self._profile, stream=text).sort_stats("tottime").print_stats(LISTED)
        return text.getvalue().strip()


class _Operators:
    """torch's profiler up to the end of the first optimizer steps, with a span for each phase."""

    def __init__(self) -> None:
        from torch.profiler import profile, record_function, supported_activities

        self._profile: Any = profile(activities=supported_activities(), profile_memory=True)  # type: ignore[no-untyped-call]
        self._span, self._spans, self._steps = record_function, list[Any](), 0
        self._profile.start()
        CLOCK.watchers.append(self)

    def entered(self, name: str) -> None:
        """A phase begins."""
        span = self._span(f"phase: {name}")
        span.__enter__()  # type: ignore[no-untyped-call]
        self._spans.append(span)

    def left(self, name: str) -> None:
        """A phase ends; if it was the last step to trace, the trace ends too."""
        if self._spans:
            self._spans.pop().__exit__(None, None, None)
        self._steps += name == "train"
        if self._steps == TRACED_STEPS:
            self._stop()

    def end(self, folder: Path) -> str:
        """The operators that took most of the time; writes the trace for chrome://tracing or ui.perfetto.dev."""
        if self in CLOCK.watchers:
            self._stop()
        with atomic_path(folder / "trace.json") as temporary:
            self._profile.export_chrome_trace(str(temporary))
        found = self._profile.key_averages()
        device = any(one.self_device_time_total for one in found)
        order = "self_device_time_total" if device else "self_cpu_time_total"
        table: str = found.table(sort_by=order, row_limit=LISTED)
        return table.strip()

    def _stop(self) -> None:
        CLOCK.watchers.remove(self)
        while self._spans:
            self._spans.pop().__exit__(None, None, None)
        self._profile.stop()
