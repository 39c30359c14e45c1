"""`--profile`: a trace of a stage's first steps, and a page that says where its time and memory went.

Nothing that a stage computes changes by being watched. A stage that has loaded torch is traced by torch's profiler,
operator by operator on whatever device; any other one by Python's, function by function.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psutil

from posttrain.measure.functions import Functions
from posttrain.measure.operators import Operators
from posttrain.measure.phases import CLOCK, NAMES, OTHER, Clock
from posttrain.measure.timings import peak_mb

FOLDER: Final = Path("profiles")
TRACED_STEPS: Final = 3
"""Optimizer steps that the trace holds: with all of them it could be gigabytes."""
SAMPLE_S: Final = 0.01
NOTE: Final = (
    "Watching slows a stage down: compare shares, and take seconds from timings/ of a run without it. "
    "The time of an inner phase is not counted again in the one around it."
)
HEADER: Final = (
    "| phase | seconds | share | times | resident MB, most | device MB, most |",
    "|---|---|---|---|---|---|",
)


def profile_path(stage: str) -> Path:
    """Where a stage's profile lies: `online@grpo` -> profiles/online/grpo/."""
    return FOLDER / stage.replace("@", "/")


@contextmanager
def profiled(stage: str) -> Iterator[None]:
    """Watch what is done inside, and write its profile even when it fails."""
    folder = profile_path(stage)
    folder.mkdir(parents=True, exist_ok=True)
    profile = Profile(CLOCK)
    CLOCK.watchers.append(profile)
    try:
        yield
    finally:
        CLOCK.watchers.remove(profile)
        profile.end(stage, folder)
        CLOCK.skip()


class Profile:
    """Watches the phases: memory of each all along, operators or functions until enough steps are traced."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._steps, self._going = clock, 0, [OTHER]
        self._entries: dict[str, int] = dict.fromkeys(NAMES, 0)
        self._peak: dict[str, float] = dict.fromkeys((*NAMES, OTHER), 0.0)
        self._device_peak = dict(self._peak)
        self._process, self._over = psutil.Process(), threading.Event()
        self._tracer = Operators() if "torch" in sys.modules else Functions()
        self._began, self._traced = time.perf_counter(), 0.0
        threading.Thread(target=self._sample, daemon=True).start()
        self._tracer.start()

    def entered(self, name: str) -> None:
        """A phase begins."""
        self._look()
        self._going.append(name)
        self._entries[name] += 1
        self._tracer.entered(name)

    def left(self, name: str) -> None:
        """A phase ends; the trace with it, if it was the last step to trace."""
        self._look()
        self._tracer.left(name)
        self._going.pop()
        self._steps += name == "train"
        if self._steps == TRACED_STEPS and name == "train":
            self._stop()

    def end(self, stage: str, folder: Path) -> None:
        """Write the trace and the page."""
        spent = self._clock.seconds()
        self._look()
        self._over.set()
        self._stop()
        fresh = folder / ".trace.tmp"
        self._tracer.write(fresh)
        os.replace(fresh, folder / "trace.json")
        page = "\n".join([f"# Profile of {stage}", "", *self._phases(spent), "", *self._tracer.page(), ""])
        (folder / "profile.md").write_text(page, encoding="utf-8")
        print(f"{stage}: profile in {folder}/profile.md, trace in {folder}/trace.json", file=sys.stderr)

    def _stop(self) -> None:
        if not self._traced:
            self._traced = time.perf_counter() - self._began
            self._tracer.stop()

    def _look(self) -> None:
        """Note how much memory the innermost phase has come to."""
        name = self._going[-1]
        self._peak[name] = max(self._peak[name], self._process.memory_info().rss / 2**20)
        cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
        if cuda is not None and cuda.is_initialized():
            self._device_peak[name] = max(self._device_peak[name], cuda.max_memory_allocated() / 2**20)
            cuda.reset_peak_memory_stats()

    def _sample(self) -> None:
        with contextlib.suppress(psutil.Error):
            while not self._over.wait(SAMPLE_S):
                name = self._going[-1]
                self._peak[name] = max(self._peak[name], self._process.memory_info().rss / 2**20)

    def _phases(self, spent: dict[str, float]) -> list[str]:
        total = sum(spent.values())
        lines = [f"{total:.2f} s, at most {peak_mb():.0f} MB. {NOTE}", "", *HEADER]
        for name, seconds in spent.items():
            cells = [name, f"{seconds:.3f}", f"{seconds / max(total, 1e-9):.1%}", str(self._entries.get(name, ""))]
            cells += [f"{self._peak[name]:.0f}", f"{self._device_peak[name]:.0f}"]
            lines.append(f"| {' | '.join(cells)} |")
        traced = f"Below: what was traced, the first {self._traced:.2f} s: all, or up to optimizer step {TRACED_STEPS}."
        return [*lines, "", traced]
