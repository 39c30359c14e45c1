"""Runs that make tables: from files, from the Hub, with your own command, or with a task."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from posttrain.data.columns import Tables
from posttrain.pipeline.params.params_file import load
from posttrain.pipeline.params.slots import model_of, table_of
from posttrain.pipeline.processes.own_command import written_by
from posttrain.pipeline.runs.external import CommandRun
from posttrain.pipeline.tables.prepare import prepare
from posttrain.pipeline.tables.sources import load_tables


def write_tables_of(run: str, make: Callable[[str], Tables]) -> None:
    """Make the tables of a run, check them, and write data/RUN."""
    prepare(run, make)


def command_tables(run: str) -> Tables:
    """Return the tables that your own command writes."""
    section = f"data.commands.{run}"
    params = load(CommandRun, section)
    start = model_of(params.start, f"{section}.start")
    with written_by(params, section, Path("data") / run, start, table_of(params.data)) as written:
        return load_tables(params, section, written / "out", outside_workspace=False)
