"""The metrics of a run: one CSV row per optimizer step. `dvc plots` draws it, and checkpoints contain it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from posttrain.distributed import world
from posttrain.measure.phases import phase

StepMetrics = Mapping[str, float]
"""Metric -> value in one optimizer step."""


class Recorder(Protocol):
    """Writes the metrics of a run's steps during training."""

    def begin(self, rows: Sequence[StepMetrics]) -> None:
        """Start with the steps in a checkpoint. A new run has none."""

    def add(self, row: StepMetrics) -> None:
        """Write the metrics of another step."""


class NoRecorder:
    """Writes nothing."""

    def begin(self, rows: Sequence[StepMetrics]) -> None:
        """Write nothing."""

    def add(self, row: StepMetrics) -> None:
        """Write nothing."""


class CsvRecorder:
    """Writes a CSV file with one row per step. The file is complete after every step.

    Example: `CsvRecorder(Path("output/metrics.csv"))`
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: list[StepMetrics] = []
        self._columns: list[str] = []

    def begin(self, rows: Sequence[StepMetrics]) -> None:
        """Replace the file with these rows."""
        self._rows, self._columns = [], []
        if world.is_rank_zero():
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.unlink(missing_ok=True)
        for row in rows:
            self.add(row)

    def add(self, row: StepMetrics) -> None:
        """Append a row. A new column rewrites the file."""
        self._rows.append(dict(row))
        new = [name for name in row if name not in self._columns]
        if new:
            self._columns += new
            self._write([",".join(self._columns), *(self._line(old) for old in self._rows)], mode="w")
        else:
            self._write([self._line(row)], mode="a")

    def _line(self, row: StepMetrics) -> str:
        return ",".join(_text(row[name]) if name in row else "" for name in self._columns)

    @phase("write")
    def _write(self, lines: list[str], mode: str) -> None:
        if world.is_rank_zero():
            with self._path.open(mode, encoding="utf-8") as file:
                file.write("".join(f"{line}\n" for line in lines))


class MetricsLog:
    """The metrics of each step, in memory and in a recorder."""

    def __init__(self, recorder: Recorder, rows: Sequence[StepMetrics] = ()) -> None:
        """`rows`: the steps in the checkpoint."""
        self._recorder = recorder
        self.rows: list[dict[str, float]] = [dict(row) for row in rows]
        recorder.begin(self.rows)

    def add(self, row: StepMetrics) -> None:
        """Append a row."""
        self.rows.append(dict(row))
        self._recorder.add(row)

    def last(self, names: Sequence[str]) -> dict[str, float]:
        """Return the values of these metrics in the newest row, where it has them."""
        return {name: self.rows[-1][name] for name in names if self.rows and name in self.rows[-1]}

    def tail(self, name: str, count: int) -> float:
        """Return the mean of a column's last values."""
        values = [row[name] for row in self.rows[-count:] if name in row]
        return sum(values) / len(values) if values else float("nan")


def _text(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.6g}"
