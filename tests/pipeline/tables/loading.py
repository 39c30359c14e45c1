"""One table of the user's own, read and made as a run of `data.files` or `data.hub` does it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from posttrain.data.columns import Kind
from posttrain.pipeline.tables.options import Source
from posttrain.pipeline.tables.user_data import make_table, read_sources, split_tables


def load_table(
    source: Source | Sequence[Source],
    kind: Kind,
    where: str,
    root: Path = Path(),
    *,
    outside_workspace: bool = False,
    table: Path = Path("rejected/table.parquet"),
) -> pl.DataFrame:
    """The checked table; `where` names its parameter in errors and printed lines, `table` its rejected rows."""
    reads = {kind: read_sources(source, kind, where, root, outside_workspace=outside_workspace)}
    return make_table(split_tables(reads, where)[kind], reads[kind], kind, where, table)
