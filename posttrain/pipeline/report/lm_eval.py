"""The metrics of `evaluate.lm_eval`: a row for each task and metric, a column for each run."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path
from typing import Any

from posttrain.measure.text_table import text_table
from posttrain.pipeline.params.stage_table import Settings, group_of
from posttrain.pipeline.report.policies import check_recorded, need_numbers, output_digests, read_json

ERROR = "_stderr"
"""The suffix of a metric's name that marks its standard error."""


def lm_eval_table(settings: Settings, left_out: Container[str]) -> dict[str, Any]:
    """Return the runs with their models, and each metric with its standard error. `left_out`: lm_eval/RUN."""
    runs = _figures(settings, left_out)
    names = dict.fromkeys(name for _, figures in runs.values() for name in figures if ERROR not in name)
    return {
        "runs": [{"run": run, "model": model} for run, (model, _) in runs.items()],
        "rows": [{"name": name, "cells": [_cell(figures, name) for _, figures in runs.values()]} for name in names],
    }


def lm_eval_rows(settings: Settings, left_out: Container[str]) -> list[dict[str, Any]]:
    """Return one row for each run."""
    runs = _figures(settings, left_out)
    return [{"table": "lm-eval", "run": run, "policy": model, **figures} for run, (model, figures) in runs.items()]


def _figures(settings: Settings, left_out: Container[str]) -> dict[str, tuple[str, dict[str, float]]]:
    """Return run -> its model and metrics, for runs with current results."""
    runs, digests = {}, output_digests()
    for run, asked in group_of(settings, "evaluate.lm_eval").items():
        file = Path("results/lm_eval") / run / "metrics.json"
        if f"lm_eval/{run}" not in left_out and file.is_file():
            check_recorded(file, digests)
            runs[run] = str((asked or {}).get("policy", "")), read_json(file)
            need_numbers(runs[run][1], runs[run][1], file)
    return runs


def lm_eval_lines(settings: Settings, left_out: Container[str]) -> str:
    """Return the metrics as text; empty without runs."""
    table = lm_eval_table(settings, left_out)
    rows = [["lm-eval", *(f"{one['run']} ({one['model']})" for one in table["runs"])]]
    rows += [[row["name"], *row["cells"]] for row in table["rows"]]
    return "\n".join(text_table(rows, ruled=True)) if table["rows"] else ""


def _cell(figures: dict[str, float], name: str) -> str:
    """Return a metric, with its standard error if there is one."""
    if name not in figures:
        return "-"
    metric, comma, reader = name.partition(",")
    error = figures.get(f"{metric}{ERROR}{comma}{reader}")
    return f"{figures[name]:.3f}" + (f" ± {error:.3f}" if error is not None else "")
