"""The metrics of a run: a CSV row per optimizer step, which `dvc plots` draws and checkpoints contain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from posttrain.distributed import world
from posttrain.measure.phases import phase

StepMetrics = Mapping[str, float]
"""Metric -> value, of one optimizer step."""


class MetricsLog:
    """Rows in memory, and on disk where there is a path; the file is complete after every step."""

    def __init__(self, path: Path | None, rows: Sequence[StepMetrics] = ()) -> None:
        self.rows: list[dict[str, float]] = []
        self._columns: list[str] = []
        if not world.is_rank_zero():
            path = None
        self._path = path
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
        for row in rows:
            self.add(row)

    def add(self, row: StepMetrics) -> None:
        """Append a row; a new column rewrites the file."""
        self.rows.append(dict(row))
        new = [name for name in row if name not in self._columns]
        if new:
            self._columns += new
            self._write([",".join(self._columns), *(self._line(old) for old in self.rows)], mode="w")
        else:
            self._write([self._line(row)], mode="a")

    def last(self, names: Sequence[str]) -> dict[str, float]:
        """Return those of these metrics that the newest row has."""
        return {name: self.rows[-1][name] for name in names if self.rows and name in self.rows[-1]}

    def tail(self, name: str, count: int) -> float:
        """Return the mean of a column's last values."""
        values = [row[name] for row in self.rows[-count:] if name in row]
        return sum(values) / len(values) if values else float("nan")

    def _line(self, row: StepMetrics) -> str:
        return ",".join(_text(row[name]) if name in row else "" for name in self._columns)

    @phase("write")
    def _write(self, lines: list[str], mode: str) -> None:
        if self._path is None:
            return
        with self._path.open(mode, encoding="utf-8") as file:
            file.write("".join(f"{line}\n" for line in lines))


def _text(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.6g}"
