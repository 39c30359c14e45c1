"""A run of `external.runs`: your own command trains a model."""

from __future__ import annotations

from pathlib import Path

from posttrain.errors import DataError
from posttrain.files import write_json, write_text
from posttrain.models.files.import_model import fetch_model
from posttrain.pipeline.params.params_file import load
from posttrain.pipeline.params.slots import needed_model, table_of
from posttrain.pipeline.processes.own_command import written_by
from posttrain.pipeline.runs.external import ExternalRun
from posttrain.pipeline.tables.curve import Column, read_curve, write_curve
from posttrain.pipeline.workspace import metrics_path, model_path, plot_path


def train_externally(run: str) -> None:
    """Run your own training command, check its output, and save it as a model."""
    name, section = f"external@{run}", f"external.runs.{run}"
    params = load(ExternalRun, section)
    start = needed_model(params.start, f"{section}.start")
    with written_by(params, section, model_path(name), start, table_of(params.data)) as written:
        columns = _checked_metrics(written / "metrics.csv")
        fetch_model(str(written / "out"), None, model_path(name))
        _save_metrics(name, columns, params)
    print(f"{name}: what `{params.script}` wrote was checked and saved in {model_path(name)}")


def _checked_metrics(written: Path) -> dict[str, Column]:
    """Return the per-step metrics that the command wrote; empty if it wrote none."""
    columns = read_curve(written) if written.is_file() else {}
    steps = columns.get("step", [])
    if columns and (not steps or None in steps):
        fix = "Write a column `step` with a number in each row"
        raise DataError(what="some rows of the metrics have no step", where="POSTTRAIN_METRICS", fix=fix)
    return columns


def _save_metrics(name: str, columns: dict[str, Column], params: ExternalRun) -> None:
    """Save the per-step metrics, if there are any, and the last value of each."""
    if columns:
        rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        known = [{key: value for key, value in row.items() if value is not None} for row in rows]
        write_curve(plot_path(name), [{**row, "step": int(row["step"])} for row in known])
    else:
        write_text(plot_path(name), "step,loss\n")
    measured = {key: [value for value in column if value is not None] for key, column in columns.items()}
    last = {key: values[-1] for key, values in measured.items() if values and key != "step"}
    write_json(metrics_path(name), {"script": params.script, "steps": len(columns.get("step", ())), **last})
