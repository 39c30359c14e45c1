"""Compute intervals by resampling prompts, because the samples of one prompt are not independent."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 2000
SEED = 20_261_121
"""The default seed of evaluations (`evaluate.settings.seed`)."""

BINS = 10
"""The number of bins of the calibration error."""
_PICKED = 2**24
"""Random numbers drawn at a time."""
Floats = NDArray[np.float64]


def interval(
    per_prompt: Floats, seed: int, level: float = 0.95, *, resamples: int = RESAMPLES, shares: bool = False
) -> tuple[float, float]:
    """Return the percentile bootstrap interval of the mean over prompts (Efron 1979).

    `shares`: if all values are 0, or all are 1, resamples do not differ, and the bound of Clopper and Pearson (1934) is
    returned.
    """
    rng, count = np.random.default_rng(seed), len(per_prompt)
    if shares and (bool((per_prompt == 0).all()) or bool((per_prompt == 1).all())):
        least = ((1 - level) / 2) ** (1 / count)
        return (0.0, 1 - least) if per_prompt[0] == 0 else (least, 1.0)
    each = max(1, _PICKED // count)
    parts = [min(each, resamples - start) for start in range(0, resamples, each)]
    means = np.concatenate([per_prompt[rng.integers(0, count, size=(part, count))].mean(axis=1) for part in parts])
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def prompt_figures(known: Sequence[Sequence[float]], samples: int, seed: int) -> dict[str, float]:
    """Return the mean over prompts with its interval; for scores of 0 and 1 also pass@k.

    known: the scores of each prompt, without failed ones. k is at most the smallest number of samples of a prompt,
    because prompts with failed samples may be the hard ones.
    """
    groups = [np.array(scores, dtype=float) for scores in known if len(scores)]
    per_prompt, outcomes = np.array([group.mean() for group in groups]), is_outcome(np.concatenate(groups))
    low, high = interval(per_prompt, seed=seed, shares=outcomes)
    figures = {"score": float(per_prompt.mean()), "score_low": low, "score_high": high}
    for k in (k for k in sizes(samples) if outcomes and k <= min(map(len, groups))):
        rates = [pass_at_k(len(group), np.array([group.sum()]), k) for group in groups]
        figures[f"pass_at_{k}"] = float(np.concatenate(rates).mean())
    return figures


def part_figures(name: str, values: Sequence[Sequence[float | None]], seed: int) -> dict[str, float]:
    """Return the mean over prompts, with its interval, of one part of the reward or one metric.

    values: the values of each prompt's completions; None: it failed. `NAME_failed` counts the failures, if there are
    any.
    """
    known = [[value for value in of_prompt if value is not None] for of_prompt in values]
    failed = sum(map(len, values)) - sum(map(len, known))
    metrics: dict[str, float] = {}
    if any(known):
        figures = prompt_figures(known, 1, seed)
        metrics = {f"{name}{end}": figures[f"score{end}"] for end in ("", "_low", "_high")}
    return metrics | ({f"{name}{FAILED_COUNT}": float(failed)} if failed else {})


FAILED_COUNT: Final = "_failed"
"""The end of the metric name that counts completions without a value."""


def failures_note(figures: Mapping[str, float], name: str) -> str:
    """Return a note with the number of completions that have no value of a metric; empty if all have one."""
    failed = figures.get(f"{name}{FAILED_COUNT}") or 0
    return f" ({failed:,.0f} failed)" if failed else ""


def is_outcome(scores: Floats) -> bool:
    """Tell whether all scores are 0 or 1."""
    return bool(np.isin(scores, (0.0, 1.0)).all())


def sizes(samples: int) -> list[int]:
    """Return the numbers of samples k for which metrics are reported: 1, 2, 4, ... and all."""
    return sorted({2**power for power in range(samples.bit_length())} | {samples})


def best_of_k(chosen_by: Floats, scores: Floats, k: int) -> float:
    """Return the expected score of the sample that another score ranks best, over all choices of k samples.

    sum_i C(n - i, k - 1) / C(n, k) score_i, with i the rank from 1 by the other score. Samples with equal ranks share
    their mean score.
    """
    order = np.argsort(-chosen_by, kind="stable")
    ranked, by = scores[order], chosen_by[order]
    for value in np.unique(by):
        ranked[by == value] = ranked[by == value].mean()
    n = len(scores)
    return math.fsum(math.comb(n - rank, k - 1) * score for rank, score in enumerate(ranked, 1)) / math.comb(n, k)


def pass_at_k(n: int, right: Floats, k: int) -> Floats:
    """Return 1 - C(n - c, k) / C(n, k) per prompt: unbiased pass@k from n samples, c of them right (Chen 2021)."""
    if k > n:
        raise ValueError(f"pass@{k} needs at least {k} samples, there are {n}")
    misses = np.ones_like(right)
    for i in range(k):
        misses *= np.clip(n - right - i, 0, None) / (n - i)
    return 1 - misses


def calibration_error(sure_I: Floats, right_I: Floats) -> float:
    """Return the expected calibration error of probabilities of being right (Naeini 2015) with bins of equal width."""
    bins_I = np.minimum((sure_I * BINS).astype(int), BINS - 1)
    apart = [abs(float((sure_I - right_I)[bins_I == number].sum())) for number in range(BINS)]
    return math.fsum(apart) / len(sure_I)
