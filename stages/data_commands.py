"""data_commands: one run of `data.commands`. Runs your command, and reads its tables as `data.files` does."""

from __future__ import annotations

from posttrain.pipeline.processes.stage import run_named_stage
from posttrain.pipeline.runs.data_tables import command_tables, write_tables_of


def main(run: str) -> None:
    """Write data/RUN/KIND.parquet for each kind of table in the run."""
    write_tables_of(run, command_tables)


if __name__ == "__main__":
    run_named_stage(main)
