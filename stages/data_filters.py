"""data_filters: one run of `data.filters`, a table without some of its rows."""

from __future__ import annotations

from posttrain.pipeline.processes.stage import run_named_stage
from posttrain.pipeline.runs.data_filters import filter_table


def main(run: str) -> None:
    """Writes data/RUN/KIND.parquet, of the kind of the table that is filtered."""
    filter_table(run)


if __name__ == "__main__":
    run_named_stage(main)
