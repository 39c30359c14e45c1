"""data_filters: one run of `data.filters`. Removes some rows of a table."""

from __future__ import annotations

from posttrain.pipeline.processes.stage import run_named_stage
from posttrain.pipeline.runs.data_filters import filter_table


def main(run: str) -> None:
    """Write data/RUN/KIND.parquet, with the same kind as the filtered table."""
    filter_table(run)


if __name__ == "__main__":
    run_named_stage(main)
