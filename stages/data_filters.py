"""data_filters: one run of `data.filters`, a table without some of its rows."""

from __future__ import annotations

from pathlib import Path

from posttrain.params.params import load
from posttrain.processes.stage import run_named_stage
from posttrain.tables.filters import FilterRun, filtered
from posttrain.tables.store import write_tables


def main(run: str) -> None:
    """Writes data/RUN/KIND.parquet, of the kind of the table that is filtered."""
    kind, table = filtered(run, load(FilterRun, f"data.filters.{run}"))
    write_tables({kind: table}, Path("data") / run)


if __name__ == "__main__":
    run_named_stage(main)
