"""Progress of long work: a line on a terminal or in a log, and a file for other programs."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TextIO

from posttrain.measure.phases import CLOCK
from posttrain.measure.stage_log import log_path
from posttrain.measure.terminal import Coded, escaped

PLAIN_EVERY_S = 10.0
LIVE_EVERY_S = 0.1
FILE_EVERY_S: Final = 1.0


class Progress:
    """Counts the steps of a task and shows its rate and the remaining time."""

    file: Path | None = None
    """The file in which this process also stores its progress, at most once a second. `keep_progress` sets it."""

    def __init__(
        self, title: str, total: int, unit: str = "step", *, done: int = 0, stream: TextIO | None = None
    ) -> None:
        self._title, self._total, self._unit = title, total, unit
        self._done = self._from = done
        self._stream = sys.stderr if stream is None else stream
        self._live = self._stream.isatty()
        self._started = self._shown = time.monotonic()
        self._start, self._written, self._spent = time.time(), 0.0, CLOCK.seconds()

    def advance(self, count: int = 1, metrics: Mapping[str, float] | None = None) -> None:
        """Count more finished steps. The next line shows `metrics`."""
        self._done += count
        now = CLOCK.moved = time.monotonic()
        due = now - self._shown >= (LIVE_EVERY_S if self._live else PLAIN_EVERY_S)
        if due and self._done < self._total:
            self._show(now, metrics or {}, end="" if self._live else "\n")
        if now - self._written >= FILE_EVERY_S:
            self._write(now, metrics or {})

    def close(self, metrics: Mapping[str, float] | None = None) -> None:
        """Show the last line, with the total time and a note if the task ended early."""
        now = time.monotonic()
        self._show(now, metrics or {}, end="\n", closed=True)
        self._write(now, metrics or {})

    def _rate(self, now: float) -> float:
        elapsed = now - self._started
        return (self._done - self._from) / elapsed if elapsed > 0 else 0.0

    def _left(self, now: float) -> float:
        rate = self._rate(now)
        return (self._total - self._done) / rate if rate > 0 else 0.0

    def _show(self, now: float, metrics: Mapping[str, float], end: str, *, closed: bool = False) -> None:
        self._shown = now
        done, steps = self._done, f"{self._done}/{self._total} {self._unit}s  {short_rate(self._rate(now))}/s"
        took = f"took {clock(now - self._started)}"
        if closed and done < self._total:
            took = f"ended early, {took}"
        left = took if closed or done == self._total else f"{clock(self._left(now))} left"
        line = f"{self._title}: {steps}  {left}"
        # A line wider than the terminal continues below, where it could not be replaced.
        width = shutil.get_terminal_size().columns - 1 if self._live else sys.maxsize
        for number in shown_metrics(metrics):
            if len(line) + len(number) > width:
                break
            line += number
        self._stream.write(Coded(f"\r\033[2K{escaped(line[:width])}{end}") if self._live else f"{line}{end}")
        self._stream.flush()

    def _phase(self) -> str:
        """Return the phase that took most of the time since the last call. Steps are counted between phases."""
        before, self._spent = self._spent, CLOCK.seconds()
        return max(self._spent, key=lambda name: self._spent[name] - before[name])

    def _write(self, now: float, metrics: Mapping[str, float]) -> None:
        """Replace the file. A full disk does not stop the work."""
        if self.file is None:
            return
        self._written = now
        state = {
            "start": round(self._start, 3), "time": round(time.time(), 3), "phase": self._phase(),
            "step": self._done, "steps": self._total, "unit": self._unit, "rate": float(f"{self._rate(now):.4g}"),
            "left": round(self._left(now), 1),
            "metrics": {name: float(f"{value:.6g}") for name, value in metrics.items() if value == value},
        }  # fmt: skip
        fresh = self.file.with_name(f".{self.file.name}")
        with contextlib.suppress(OSError):
            fresh.write_text(json.dumps(state), encoding="utf-8")
            os.replace(fresh, self.file)


def keep_progress(stage: str) -> None:
    """Store this process's progress in logs/STAGE.progress.json from now on, and remove an earlier run's."""
    Progress.file = progress_path(stage)
    with contextlib.suppress(OSError):
        Progress.file.unlink(missing_ok=True)


def progress_path(stage: str) -> Path:
    """Return the progress file of a stage: `online@grpo` -> logs/online@grpo.progress.json."""
    return log_path(stage).with_suffix(".progress.json")


def read_progress(file: Path, since: float) -> dict[str, Any] | None:
    """Return the progress that a stage has written since `since`; None if there is none."""
    try:
        state = json.loads(file.read_bytes())
        return state if state["time"] >= since and state["steps"] >= 0 else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def progress_text(state: Mapping[str, Any]) -> str:
    """Return progress as a line: '531/1800 steps  3/s  5:18 left  reward 1.08'."""
    steps = f"{state['step']}/{state['steps']} {state['unit']}s  {short_rate(state['rate'])}/s"
    return f"{steps}  {clock(state['left'])} left" + "".join(shown_metrics(state["metrics"]))


def short_rate(rate: float) -> str:
    """Return steps per second with three digits."""
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def shown_metrics(metrics: Mapping[str, float]) -> list[str]:
    """Return each metric as text for a line."""
    return [f"  {name} {value:.4g}" for name, value in metrics.items()]


def clock(seconds: float) -> str:
    """Return seconds as 5:18 or 1:02:57."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
