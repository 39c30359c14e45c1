"""Progress of long work: one updated line on a terminal, a plain line every ten seconds elsewhere."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Mapping
from typing import TextIO

from posttrain.measure.phases import CLOCK
from posttrain.measure.terminal import Coded, escaped

PLAIN_EVERY_S = 10.0
LIVE_EVERY_S = 0.1


class Progress:
    """Counts the steps of one piece of work and shows its rate and the time left."""

    def __init__(
        self, title: str, total: int, unit: str = "step", *, done: int = 0, stream: TextIO | None = None
    ) -> None:
        self._title, self._total, self._unit = title, total, unit
        self._done = self._from = done
        self._stream = sys.stderr if stream is None else stream
        self._live = self._stream.isatty()
        self._started = self._shown = time.monotonic()

    def advance(self, count: int = 1, metrics: Mapping[str, float] | None = None) -> None:
        """Count more finished steps; `metrics` are shown with the next line."""
        self._done += count
        now = CLOCK.moved = time.monotonic()
        due = now - self._shown >= (LIVE_EVERY_S if self._live else PLAIN_EVERY_S)
        if due and self._done < self._total:
            self._show(now, metrics or {}, end="" if self._live else "\n")

    def close(self, metrics: Mapping[str, float] | None = None) -> None:
        """Show the last line, with the total time, and whether it ended before all was done."""
        self._show(time.monotonic(), metrics or {}, end="\n", closed=True)

    def _show(self, now: float, metrics: Mapping[str, float], end: str, *, closed: bool = False) -> None:
        self._shown = now
        elapsed = now - self._started
        rate = (self._done - self._from) / elapsed if elapsed > 0 else 0.0
        left = (self._total - self._done) / rate if rate > 0 else 0.0
        time_text = f"took {clock(elapsed)}" if closed or self._done == self._total else f"{clock(left)} left"
        time_text = f"ended early, {time_text}" if closed and self._done < self._total else time_text
        shown = f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"
        line = f"{self._title}: {self._done}/{self._total} {self._unit}s  {shown}/s  {time_text}"
        # A line wider than the terminal continues below, where it could not be replaced.
        width = shutil.get_terminal_size().columns - 1 if self._live else sys.maxsize
        for number in (f"  {name} {value:.4g}" for name, value in metrics.items()):
            if len(line) + len(number) > width:
                break
            line += number
        self._stream.write(Coded(f"\r\033[2K{escaped(line[:width])}{end}") if self._live else f"{line}{end}")
        self._stream.flush()


def clock(seconds: float) -> str:
    """Return seconds as 5:18 or 1:02:57."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
