"""Fit a sigmoid of score over compute to runs of one setting: sigmoid.py online/s1 online/s2 online/s3.

R(C) = R0 + (A - R0) / (1 + (half / C)^B)     C: tokens trained on so far, R: the score that `watch` measured

C is the sum of the steps' mean lengths: tokens of one row of each step. Groups that `resample` drops are not in it.
A is where it ends with more compute, half the compute of half the way, B how steep it is (ScaleRL, arXiv:2510.13786).
Their intervals are those of 400 fits to runs and evaluations drawn again.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

Floats = NDArray[np.float64]
STEEPNESS = np.geomspace(0.4, 6.0, 40)
DRAWS = 400


def points_of(run: str) -> tuple[Floats, Floats]:
    """Return the compute and the score of each evaluation of a run, without the one before the first step."""
    curve = pl.read_csv(f"plots/{run}.csv").with_columns(tokens=pl.col("length").fill_null(0).cum_sum())
    seen = curve.drop_nulls("heldout_true").filter(pl.col("step") > 0)
    return seen["tokens"].to_numpy().astype(float), seen["heldout_true"].to_numpy().astype(float)


def fit(compute: Floats, score: Floats) -> dict[str, float]:
    """Return the least-squares sigmoid: the best of a grid of B and half, for which A and R0 are linear."""
    best, found = np.inf, dict[str, float]()
    for half in np.geomspace(compute.min() / 4, compute.max() * 4, 60):
        for steepness in STEEPNESS:
            share = 1 / (1 + (half / compute) ** steepness)
            columns = np.stack([1 - share, share], axis=1)
            (start, end), *_ = np.linalg.lstsq(columns, score, rcond=None)
            error = float(((columns @ [start, end] - score) ** 2).sum())
            if error < best and 0 <= end <= 1:
                best, found = error, {"A": float(end), "half": float(half), "B": float(steepness), "R0": float(start)}
    return found


def fitted(runs: list[tuple[Floats, Floats]], draws: int = DRAWS) -> dict[str, tuple[float, float, float]]:
    """Return each number of the fit with its 95 % interval."""
    rng = np.random.default_rng(0)

    def joined(chosen: list[tuple[Floats, Floats]]) -> dict[str, float]:
        return fit(np.concatenate([run[0] for run in chosen]), np.concatenate([run[1] for run in chosen]))

    def drawn(run: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
        places = np.sort(rng.integers(0, len(run[0]), len(run[0])))
        return run[0][places], run[1][places]

    whole = joined(runs)
    again = [joined([drawn(runs[nth]) for nth in rng.integers(0, len(runs), len(runs))]) for _ in range(draws)]
    return {
        name: (value, *(float(edge) for edge in np.quantile([one[name] for one in again if one], [0.025, 0.975])))
        for name, value in whole.items()
    }


if __name__ == "__main__":
    names = sys.argv[1:]
    if missing := [name for name in names if not Path(f"plots/{name}.csv").is_file()]:
        sys.exit(f"error: plots/{missing[0]}.csv is missing. Name finished runs with watch, e.g. online/s1")
    for name, (value, low, high) in fitted([points_of(name) for name in names]).items():
        print(f"{name:5} {value:.4g} [{low:.4g}, {high:.4g}]")
