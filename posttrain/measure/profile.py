"""`--profile`: a torch trace of a stage's first steps, with a span for each phase. Results do not change."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from posttrain.files import atomic_path
from posttrain.measure.phases import CLOCK

FOLDER: Final = Path("profiles")
TRACED_STEPS: Final = 3
"""Optimizer steps in the trace. All of them could take gigabytes."""
LISTED: Final = 25


@contextmanager
def profiled(stage: str) -> Iterator[None]:
    """Trace the block and write the trace, even after an error: online@grpo -> profiles/online/grpo/trace.json."""
    from torch.profiler import profile, supported_activities

    folder = FOLDER / stage.replace("@", "/")
    folder.mkdir(parents=True, exist_ok=True)
    trace: Any = profile(activities=supported_activities(), profile_memory=True)  # type: ignore[no-untyped-call]
    trace.start()
    phases = _Phases(trace)
    CLOCK.watchers.append(phases)
    try:
        yield
    finally:
        phases.stop()
        with atomic_path(folder / "trace.json") as temporary:
            trace.export_chrome_trace(str(temporary))
        print(trace.key_averages().table(sort_by="self_cpu_time_total", row_limit=LISTED), file=sys.stderr)
        print(f"{stage}: {folder}/trace.json is for ui.perfetto.dev. A trace slows a stage down", file=sys.stderr)
        CLOCK.skip()


class _Phases:
    """The spans of phases in a trace, up to its last step."""

    def __init__(self, trace: Any) -> None:
        self._trace, self._spans, self._steps = trace, list[Any](), 0

    def entered(self, name: str) -> None:
        """Begin the span of a phase."""
        from torch.profiler import record_function

        span = record_function(f"phase: {name}")
        span.__enter__()  # type: ignore[no-untyped-call]
        self._spans.append(span)

    def left(self, name: str) -> None:
        """End the span of a phase. After the last traced step, end the trace too."""
        if self._spans:
            self._spans.pop().__exit__(None, None, None)
        self._steps += name == "train"
        if self._steps == TRACED_STEPS:
            self.stop()

    def stop(self) -> None:
        """End all spans and the trace. Only the first call has an effect."""
        if self in CLOCK.watchers:
            CLOCK.watchers.remove(self)
            while self._spans:
                self._spans.pop().__exit__(None, None, None)
            self._trace.stop()
