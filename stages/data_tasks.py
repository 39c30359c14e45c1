"""data_tasks: one run of `data.tasks`. Generates tables."""

from __future__ import annotations

from posttrain.pipeline.processes.stage import run_named_stage
from posttrain.pipeline.runs.data_tables import write_tables_of
from posttrain.pipeline.runs.task_tables import task_tables


def main(run: str) -> None:
    """Write data/RUN/KIND.parquet for each kind of table in the run."""
    write_tables_of(run, task_tables)


if __name__ == "__main__":
    run_named_stage(main)
