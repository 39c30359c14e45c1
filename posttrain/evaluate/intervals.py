"""Intervals by resampling prompts, since the samples of one prompt are not independent."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 2000
SEED = 20_261_121
"""That of evaluations, where params.yaml names no other (`evaluate.settings.seed`)."""

Floats = NDArray[np.float64]


def interval(per_prompt: Floats, seed: int, level: float = 0.95, *, resamples: int = RESAMPLES) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean over prompts (Efron 1979)."""
    rng = np.random.default_rng(seed)
    picks = rng.integers(0, len(per_prompt), size=(resamples, len(per_prompt)))
    means = per_prompt[picks].mean(axis=1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def pass_at_k(n: int, right: Floats, k: int) -> Floats:
    """1 - C(n - c, k) / C(n, k) for each prompt: unbiased pass@k from n samples of which c are right (Chen 2021)."""
    if k > n:
        raise ValueError(f"pass@{k} needs at least {k} samples, there are {n}")
    misses = np.ones_like(right)
    for i in range(k):
        misses *= np.clip(n - right - i, 0, None) / (n - i)
    return 1 - misses
