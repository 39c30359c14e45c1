"""data_hub: one run of `data.hub`. Downloads tables from the Hub."""

from __future__ import annotations

from posttrain.pipeline.processes.stage import run_named_stage
from posttrain.pipeline.runs.data_tables import write_tables_of
from posttrain.pipeline.tables.sources import hub_tables


def main(run: str) -> None:
    """Write data/RUN/KIND.parquet for each kind of table in the run."""
    write_tables_of(run, hub_tables)


if __name__ == "__main__":
    run_named_stage(main)
