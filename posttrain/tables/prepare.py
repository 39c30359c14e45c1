"""The work of the stages `data_tasks`, `data_files` and `data_hub`: tables checked one by one and together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import polars as pl

from posttrain.measure.phases import phase
from posttrain.tables.columns import Kind
from posttrain.tables.sources import Tables
from posttrain.tables.store import check_disjoint, check_table, write_tables
from posttrain.workspace import table_path


def prepare(run: str, make: Callable[[str], Tables]) -> None:
    """Make the tables of a run, check them and write them to data/RUN; nothing is written if one is refused."""
    with phase("load"):
        tables = make(run)
        for kind, frame in tables.items():
            check_table(frame, kind, table_path(f"{run}/{kind}"))
        check_disjoint({str(kind): frame for kind, frame in tables.items()})
    write_tables(tables, Path("data") / run)
    print(summary(tables))


def summary(tables: Mapping[Kind, pl.DataFrame]) -> str:
    """Rows per table and split, as lines to print."""
    splits = ("train", "heldout", "test")
    lines = [f"{'table':<10}" + "".join(f"{split:>10}" for split in splits)]
    for name, frame in tables.items():
        counts: dict[str, int] = dict(frame["split"].value_counts().rows())
        cells = (f"{counts[split]:,}" if split in counts else "-" for split in splits)
        lines.append(f"{name:<10}" + "".join(f"{cell:>10}" for cell in cells))
    return "\n".join(lines)
