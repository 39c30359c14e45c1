"""The training curves of settings: mean and range over the seeds of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from posttrain.pipeline.compare.budgets import METRICS, used
from posttrain.pipeline.compare.settings import Setting
from posttrain.pipeline.compare.statistics import Floats

POINTS: Final = 60
"""The most points of a curve. Each is the mean of equally many steps."""


@dataclass(frozen=True)
class Band:
    """A setting's curve. A single seed has a mean without a range."""

    label: str
    steps: Floats
    mean: Floats
    low: Floats
    high: Floats


def bands(settings: Sequence[Setting]) -> tuple[str, list[Band]]:
    """Return the metric for which all trainings have a curve, and each setting's curve; empty without such a metric.

    The seeds of a setting are compared at the same steps, up to the shortest of them.
    """
    trained = [policy for setting in settings for policy in setting.trained]
    metric = next((name for name in METRICS if trained and all(name in policy.curve for policy in trained)), None)
    if metric is None:
        return "", []
    drawn = []
    for setting in settings:
        curves = [_curve(policy.curve[metric], used(policy, "steps")) for policy in setting.trained]
        last = min((int(steps[-1]) for steps, _ in curves if len(steps)), default=0)
        if not last or not all(len(steps) for steps, _ in curves):
            continue
        edges = np.linspace(0, last, min(POINTS, last) + 1)
        values = np.array([_means(steps, column, edges) for steps, column in curves])
        known = ~np.isnan(values).any(axis=0)
        part = values[:, known]
        drawn.append(Band(setting.label, edges[1:][known], part.mean(axis=0), part.min(axis=0), part.max(axis=0)))
    return metric, [band for band in drawn if len(band.steps)]


def _curve(column: Sequence[float | None], steps: Floats | None) -> tuple[Floats, Floats]:
    if steps is None:
        return np.array([]), np.array([])
    known = [(step, value) for step, value in zip(steps, column, strict=True) if value is not None]
    return np.array([step for step, _ in known]), np.array([value for _, value in known], dtype=float)


def _means(steps: Floats, values: Floats, edges: Floats) -> Floats:
    """Return the mean of the values in each interval of steps; nan where there are none."""
    place = np.searchsorted(edges, steps, side="left") - 1
    inside = (place >= 0) & (place < len(edges) - 1)
    count = np.bincount(place[inside], minlength=len(edges) - 1)
    total = np.bincount(place[inside], weights=values[inside], minlength=len(edges) - 1)
    means: Floats = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return means
