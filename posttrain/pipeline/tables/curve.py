"""Learning curves: the metrics per optimizer step that a training stage writes."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from posttrain.errors import DataError
from posttrain.files import atomic_path

Column = list[float | None]


def read_curve(path: Path) -> dict[str, Column]:
    """Return the columns of a metrics file. Empty cells are None."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        if any(None in row for row in rows):
            raise ValueError("a row has more cells than there are columns")
        names = [str(name) for name in rows[0]] if rows else []
        return {name: [_number(row[name]) for row in rows] for name in names}
    except (OSError, ValueError, csv.Error) as error:
        fix = "Train it again: dvc repro"
        raise DataError(what=f"not readable as a table of metrics ({error})", where=str(path), fix=fix) from error


def write_curve(path: Path, rows: Sequence[Mapping[str, float]]) -> None:
    """Write the metrics of each step. Missing values become empty cells."""
    names = dict.fromkeys(name for row in rows for name in row)
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _number(cell: str | None) -> float | None:
    if not cell:
        return None
    value = float(cell)
    return value if math.isfinite(value) else None
