"""Learning curves: the metrics per optimizer step of every training stage."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

from posttrain.pipeline.tables.curve import Column, read_curve
from posttrain.pipeline.workspace import metrics_path, plot_path

DIGITS = 5


def thinned(columns: dict[str, Column], points: int) -> tuple[dict[str, Column], int]:
    """Return at most `points` points, each the mean of n steps, and n."""
    steps = max((len(column) for column in columns.values()), default=0)
    each = max(1, math.ceil(steps / points))
    thin = {
        name: [_mean(column[start : start + each]) for start in range(0, steps, each)]
        for name, column in columns.items()
    }
    return thin, each


def curves(named: Iterable[tuple[str, str]], points: int) -> list[dict[str, Any]]:
    """Return the page's curves for the (path, label) pairs that have a metrics file."""
    drawn = []
    for path, label in named:
        if not plot_path(path).is_file():
            continue
        columns, each = thinned(read_curve(plot_path(path)), points)
        known_columns = {name: column for name, column in columns.items() if any(value is not None for value in column)}
        if known_columns and "step" in known_columns:
            drawn.append({"label": label, "path": path, "each": each, "columns": known_columns})
    return drawn


QUANTITIES = {"true": 1, "proxy": 1, "score": 1, "loss": -1}
"""Metrics of `watch` after `heldout_`; the deciding ones come first. -1: smaller is better."""
STEPS = ("best_step", "kept_step", "over_optimised_step")


def evaluations(named: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
    """Return the page's evaluations during training for the (path, label) pairs that have them."""
    drawn = []
    for path, label in named:
        columns = read_curve(plot_path(path)) if plot_path(path).is_file() else {}
        names = [name for name in QUANTITIES if f"heldout_{name}_low" in columns]
        if not names or not metrics_path(path).is_file():
            continue
        measured = [{"name": name, "sign": QUANTITIES[name], "points": _points(columns, name)} for name in names]
        metrics = json.loads(metrics_path(path).read_text(encoding="utf-8"))
        steps = {name: metrics[name] for name in STEPS if name in metrics}
        drawn.append({"label": label, "path": path, "measured": measured, **steps})
    return drawn


def _points(columns: dict[str, Column], name: str) -> list[dict[str, Any]]:
    """Return the evaluations of one quantity with their intervals."""
    parts = (columns[key] for key in ("step", *(f"heldout_{name}{end}" for end in ("", "_low", "_high"))))
    rows = zip(*parts, strict=True)
    return [{"x": step, "y": y, "low": low, "high": high} for step, y, low, high in rows if y is not None]


SHOWN = (
    "reward",
    "loss",
    "accuracy",
    "margin",
    "length",
    "kl_k3",
    "teacher_kl",
    "entropy",
    "heldout_true",
    "heldout_proxy",
    "heldout_score",
    "heldout_loss",
    "heldout_accuracy",
    "heldout_both_fell",
    "clip_fraction",
    "grad_norm",
)
"""The metrics that `dvc plots show` draws, ordered as in .dvc/plots/curves.json, then the parts of a reward."""


def curves_csv(drawn: Iterable[dict[str, Any]], policies: Sequence[str] = ()) -> str:
    """Return the curves of all runs as one table for DVC: metric, run, step, value.

    The order of the runs is the order of their colours on the page: policies first.
    """
    lines = ["metric,run,step,value"]
    place = {label: number for number, label in enumerate(policies)}
    ordered = sorted(drawn, key=lambda curve: place.get(curve["label"], len(place)))
    names = dict.fromkeys(name for curve in ordered for name in curve["columns"])
    parts = [name for name in names if name.startswith("reward_") and not name.endswith(("_std", "_ok"))]
    for run in ordered:
        columns = run["columns"]
        for metric in ("reward", *parts, *SHOWN[1:]):
            for step, value in zip(columns["step"], columns.get(metric, ()), strict=False):
                if value is not None:
                    lines.append(f"{metric},{run['label']},{step:g},{value!r}")
    return "\n".join(lines) + "\n"


def _mean(values: Sequence[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return float(f"{math.fsum(present) / len(present):.{DIGITS}g}") if present else None
