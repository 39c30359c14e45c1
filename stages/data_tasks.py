"""data_tasks: one run of `data.tasks`, tables generated."""

from __future__ import annotations

from posttrain.pipeline.processes.stage import run_named_stage
from posttrain.pipeline.runs.task_tables import task_tables
from posttrain.pipeline.tables.prepare import prepare
from posttrain.rewards.unread_answers import answer_notes


def main(run: str) -> None:
    """Writes data/RUN/KIND.parquet for each kind of table that the run has."""
    prepare(run, task_tables, answer_notes)


if __name__ == "__main__":
    run_named_stage(main)
