"""Find the file of a table in a command, or suggest the stage that makes it or a similar name."""

from __future__ import annotations

from pathlib import Path

from posttrain.errors import DataError
from posttrain.pipeline.params.params_file import read
from posttrain.pipeline.params.stage_table import STAGES, Settings, evaluated
from posttrain.pipeline.tables.readers import READERS
from posttrain.pipeline.workspace import PARAMS_FILE, table_path
from posttrain.settings.params import nearest


def table_file(name: str) -> Path:
    """Return the file of a table given as NAME/KIND or as a path."""
    for path in (Path(name), table_path(name)):
        if path.is_file():
            return path
    makers = _makers(read()) if Path(PARAMS_FILE).is_file() else {}
    asked = name.removeprefix("data/").removesuffix(".parquet") if name.startswith("data/") else name
    if asked in makers:
        raise DataError(what="the table does not exist yet", where=name, fix=f"Make it: dvc repro {makers[asked]}")
    if near := nearest(asked, list(makers)):
        raise DataError(what="no such table", where=name, fix=f"Did you mean '{near}'?")
    known = f", or one of {', '.join(makers)}" if makers else ""
    raise DataError(what="no such table", where=name, fix=f"Give a file ({', '.join(READERS)}){known}"[:1000])


def _makers(settings: Settings) -> dict[str, str]:
    """Return table or evaluated rollouts in params.yaml -> the DVC stage that makes it."""
    from posttrain.pipeline.checks.run_graph import RunOutputs  # knows every task: imported for an error alone

    stages = {stage.group: stage.name for stage in STAGES}
    places = {table: where.rpartition(".") for table, where in RunOutputs(settings, {}, []).tables.items()}
    results = {f"results/{label}/{run.rows}.parquet": run.stage for label, run in evaluated(settings).items()}
    return {table: f"{stages[group]}@{run}" for table, (group, _, run) in places.items()} | results
