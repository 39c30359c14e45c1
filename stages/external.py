"""external: one run of `external.runs`, a model that a command of yours trains, checked before it counts."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Literal

from pydantic import Field

from posttrain.errors import DataError, ParamsError
from posttrain.models.files.import_model import fetch_model
from posttrain.params.params import PARAMS_FILE, Params, load
from posttrain.params.slots import model_slot, needed_model, table_of, table_slot
from posttrain.processes.own_command import run_own
from posttrain.processes.stage import run_named_stage
from posttrain.tables.curve import read_curve
from posttrain.tables.sources import USER_KINDS
from posttrain.workspace import atomic_path, is_outside, metrics_path, model_path, plot_path, write_json, write_text


class ExternalRun(Params):
    """One run of `external.runs`: a trainer of your own, as a command."""

    makes: Literal["model"] = Field("model", description="what the command writes into {out}")
    command: str | list[str] = Field(
        min_length=1,
        description="a line for the shell, or words; {start}, {data}, {out}, {metrics} and {seed} are filled in",
    )
    script: str = Field(
        min_length=1, description="the file or folder that the command runs: a change makes the run stale"
    )
    start: str = model_slot("the model it starts from")
    data: str = table_slot(*USER_KINDS, description="the table that it reads", optional=True)
    env: list[str] = Field(
        [], description="names of environment variables that the command gets too; their values are stored nowhere"
    )
    seed: int = Field(0, ge=0, description="what the command gets as its seed")


def main(run: str) -> None:
    """Writes models/external/RUN, metrics/external/RUN.json and plots/external/RUN.csv."""
    name, section = f"external@{run}", f"external.runs.{run}"
    params = load(ExternalRun, section)
    if is_outside(params.script):
        where = f"{section}.script = {params.script} ({PARAMS_FILE})"
        raise ParamsError(what="it is outside the workspace", where=where, fix="Copy it into the workspace")
    scratch = model_path(name).with_name(f".{run}.scratch.tmp")
    shutil.rmtree(scratch, ignore_errors=True)  # of a run that was killed together with its keeper
    out, measured = scratch / "model", scratch / "metrics.csv"
    out.mkdir(parents=True)
    table = table_of(params.data)
    given = {
        "start": str(needed_model(params.start, f"{section}.start")),
        "data": "" if table is None else str(table),
        "out": str(out),
        "metrics": str(measured),
        "seed": str(params.seed),
    }
    try:
        run_own(params.command, given, params.env, scratch, section)
        _save_metrics(name, measured, params)
        fetch_model(str(out), None, model_path(name))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    print(f"{name}: what `{params.script}` wrote was checked and saved in {model_path(name)}")


def _save_metrics(name: str, written: Path, params: ExternalRun) -> None:
    """Save the metrics per step that the command wrote, if it wrote any, and the last value of each."""
    columns = read_curve(written) if written.is_file() else {}
    steps = columns.get("step", [])
    if columns and (not steps or None in steps):
        fix = "Write a column `step` with a number in each row"
        raise DataError(what="the metrics have rows without a step", where="POSTTRAIN_METRICS", fix=fix)
    if columns:
        with atomic_path(plot_path(name)) as file:
            shutil.copyfile(written, file)
    else:
        write_text(plot_path(name), "step,loss\n")
    measured = {key: [value for value in column if value is not None] for key, column in columns.items()}
    last = {key: values[-1] for key, values in measured.items() if values and key != "step"}
    write_json(metrics_path(name), {"script": params.script, "steps": len(steps), **last})


if __name__ == "__main__":
    run_named_stage(main)
