"""data_files: one run of `data.files`, tables read from the user's own files."""

from __future__ import annotations

from posttrain.pipeline.processes.stage import run_named_stage
from posttrain.pipeline.tables.prepare import prepare
from posttrain.pipeline.tables.sources import file_tables
from posttrain.rewards.unread_answers import answer_notes


def main(run: str) -> None:
    """Writes data/RUN/KIND.parquet for each kind of table that the run has."""
    prepare(run, file_tables, answer_notes)


if __name__ == "__main__":
    run_named_stage(main)
