"""data_commands: one run of `data.commands`, tables that a command of yours writes, read as your own files are."""

from __future__ import annotations

from pathlib import Path

from posttrain.data.columns import Tables
from posttrain.pipeline.params.params_file import load
from posttrain.pipeline.params.slots import model_of, table_of
from posttrain.pipeline.processes.own_command import written_by
from posttrain.pipeline.processes.stage import run_named_stage
from posttrain.pipeline.runs.external import CommandRun
from posttrain.pipeline.tables.prepare import prepare
from posttrain.pipeline.tables.sources import load_tables
from posttrain.rewards.unread_answers import answer_notes


def main(run: str) -> None:
    """Writes data/RUN/KIND.parquet for each kind of table that the run has."""
    prepare(run, _tables, answer_notes)


def _tables(run: str) -> Tables:
    section = f"data.commands.{run}"
    params = load(CommandRun, section)
    start = model_of(params.start, f"{section}.start")
    with written_by(params, section, Path("data") / run, start, table_of(params.data)) as written:
        return load_tables(params, section, written / "out", outside_workspace=False)


if __name__ == "__main__":
    run_named_stage(main)
