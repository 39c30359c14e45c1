"""Measure the agreement of two raters beyond chance."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 2000
_CHUNK = 4_000_000


def kappa(
    labels: Sequence[Hashable],
    verdicts: Sequence[Hashable],
    problems: Sequence[Hashable] | None = None,
    seed: int = 0,
    level: float = 0.95,
) -> tuple[float, float, float]:
    """Return Cohen's kappa (1960), (p_o - p_e) / (1 - p_e), and its percentile bootstrap interval (Efron 1979).

    Rows of one problem are resampled together; without `problems`, each row by itself. A resample in which both raters
    use only one and the same category is left out.
    """
    if len(labels) != len(verdicts) or not labels:
        raise ValueError(f"{len(labels)} labels and {len(verdicts)} verdicts: give one verdict for each label")
    number = {name: index for index, name in enumerate(dict.fromkeys([*labels, *verdicts]))}
    size = len(number)
    cell = np.array([number[label] * size + number[verdict] for label, verdict in zip(labels, verdicts, strict=True)])
    value = float(_kappas(np.bincount(cell, minlength=size * size)[None], size)[0])
    if not np.isfinite(value):
        raise ValueError(f"every label and every verdict is {labels[0]!r}: kappa needs two categories")
    place = {problem: index for index, problem in enumerate(dict.fromkeys(problems or range(len(cell))))}
    tables = np.zeros((len(place), size * size), dtype=np.int64)
    np.add.at(tables, (np.array([place[problem] for problem in problems or range(len(cell))]), cell), 1)
    rng, resampled = np.random.default_rng(seed), []
    each = max(1, _CHUNK // len(place))
    for start in range(0, RESAMPLES, each):
        drawn = rng.multinomial(len(place), np.full(len(place), 1 / len(place)), size=min(each, RESAMPLES - start))
        resampled.append(_kappas(drawn @ tables, size))
    kappas = np.concatenate(resampled)
    low, high = np.quantile(kappas[np.isfinite(kappas)], [(1 - level) / 2, (1 + level) / 2])
    return value, float(low), float(high)


def _kappas(counts: NDArray[np.int64], size: int) -> NDArray[np.float64]:
    """Return the kappa of each table [R, size * size] of counts; not finite if all rows are in one category."""
    table = counts.reshape(-1, size, size) / counts.sum(axis=1)[:, None, None]
    agreed = np.trace(table, axis1=1, axis2=2)
    chance = (table.sum(axis=2) * table.sum(axis=1)).sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        kappas: NDArray[np.float64] = (agreed - chance) / (1 - chance)
    return kappas
