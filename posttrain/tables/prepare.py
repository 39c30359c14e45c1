"""The first stage's work: the tables that everything else starts from, checked one by one and together."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import polars as pl

from posttrain.measure.phases import phase
from posttrain.tables.columns import Kind
from posttrain.tables.parquet import Place
from posttrain.tables.sources import SOURCES, PrepareParams, Tables
from posttrain.tables.store import check_disjoint, check_table, write_table

PREPARED: Final[tuple[Kind, ...]] = ("corpus", "chat", "prompts")


def prepare(params: PrepareParams, folder: Place = "data") -> Tables:
    """The tables of the source, checked and disjoint; `folder` is where rejected rows are put."""
    with phase("load"):
        tables = SOURCES[params.source](params)
        for kind in PREPARED:
            check_table(tables[kind], kind, table_path(folder, kind))
        check_disjoint(tables)
    return tables


def write_tables(tables: Mapping[str, pl.DataFrame], folder: Place = "data") -> None:
    """Writes the prepared tables into the folder."""
    for kind in PREPARED:
        write_table(tables[kind], table_path(folder, kind), kind)


def summary(tables: Mapping[str, pl.DataFrame]) -> str:
    """Rows per table and split, as lines to print."""
    splits = ("train", "heldout", "test")
    lines = [f"{'table':<10}" + "".join(f"{split:>10}" for split in splits)]
    for name, frame in tables.items():
        counts: dict[str, int] = dict(frame["split"].value_counts().rows())
        cells = (f"{counts[split]:,}" if split in counts else "-" for split in splits)
        lines.append(f"{name:<10}" + "".join(f"{cell:>10}" for cell in cells))
    return "\n".join(lines)


def table_path(folder: Place, kind: Kind) -> Path:
    """Where the table of this kind lies."""
    return Path(folder) / f"{kind}.parquet"
