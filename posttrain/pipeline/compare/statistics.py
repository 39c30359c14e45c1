"""Paired differences of settings on the same prompts, with intervals over prompts and seeds (Holm's correction)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

DRAWS = 20_000
ALPHA = 0.05
TIE = 1e-12
"""Scores of a prompt that differ by less count as equal."""
_CHUNK = 2_000_000
_ANGLES = 400_001
"""The steps of the numeric distribution function of Student's t."""


@dataclass(frozen=True)
class Difference:
    """The mean difference between left and right, with samples of its error."""

    mean: float
    errors: Floats
    """Absolute values of the drawn errors, sorted."""
    over_seeds: bool
    """False if one side has a single seed. Then the errors cover only the other side's seeds, if it has several."""
    least_p: float = 0.0
    """The smallest p that the number of differing prompts permits: all on one side, by the sign test."""

    def half(self, alpha: float) -> float:
        """Return half the interval's width at level 1 - alpha.

        It reaches 0 if the prompts are too few for the level.
        """
        rank = int(np.ceil((1 - alpha) * len(self.errors)))
        half = float(self.errors[min(rank, len(self.errors) - 1)])
        return max(half, abs(self.mean)) if self.least_p > alpha else half

    @property
    def p_value(self) -> float:
        """The probability that chance gives a difference at least as large."""
        larger = len(self.errors) - int(np.searchsorted(self.errors, abs(self.mean), side="left"))
        return max((1 + larger) / (1 + len(self.errors)), self.least_p)


@dataclass(frozen=True)
class Finding:
    """One pair's interval, at its level by Holm's correction."""

    mean: float
    low: float
    high: float
    p_value: float
    """Corrected for the number of pairs."""
    over_seeds: bool

    @property
    def significant(self) -> bool:
        """True if the interval excludes 0."""
        return self.low > 0 or self.high < 0


def difference(left_SP: Floats, right_SP: Floats, seed: int = 0) -> Difference:
    """Return `mean(left) - mean(right)`, each [seeds, prompts] on the same prompts in the same order.

    Prompts are resampled jointly for both sides (Efron 1979). Two or three seeds cannot be resampled: n of them
    underestimate their variance by (n - 1) / n. So the seeds' error is drawn from Student's t with Welch's degrees of
    freedom, for each side with several seeds. A single training, such as a common start, is taken as fixed. The
    variance within a cell (one seed, one prompt) is part of both terms and counted once.
    """
    rng = np.random.default_rng(seed)
    left_P, right_P = left_SP.mean(axis=0), right_SP.mean(axis=0)
    apart_P = left_P - right_P
    mean, prompts = float(apart_P.mean()), len(apart_P)
    errors = _sign(apart_P) * _resampled(apart_P - mean, rng)
    sides = [side_SP for side_SP in (left_SP, right_SP) if len(side_SP) > 1]
    over_seeds = len(sides) == 2
    if sides:
        spread, shared = _seed_variances(sides), sum(map(_cell_variance, sides))
        of_prompts = float(apart_P.var(ddof=1)) / prompts if prompts > 1 else 0.0
        if of_prompts > 0:
            errors *= np.sqrt(max(0.0, 1 - shared / of_prompts))
        if sum(spread) > 0:
            freedom = sum(spread) ** 2 / sum(
                variance**2 / (len(side) - 1) for variance, side in zip(spread, sides, strict=True)
            )
            errors += np.sqrt(sum(spread)) * rng.permutation(_student(freedom, DRAWS))
    differ = np.count_nonzero(np.abs(apart_P) > TIE)
    return Difference(mean, np.sort(np.abs(errors)), over_seeds, 0.0 if sides else min(1.0, 2 * 0.5**differ))


def paired(
    apart_NP: Floats, weight_N: Floats, within: float, variance: float, freedom: int, seed: int = 0
) -> Difference:
    """Return the weighted mean of paired differences [pairs, prompts]: left minus right for each pair of trainings.

    All pairs share the prompts, which are resampled jointly. The trainings' error is drawn from Student's t with
    `variance` and `freedom`. `within`: the part of the variance that lies within a pair and a prompt, which both terms
    have; it counts once. With `freedom` 0 the errors cover prompts alone.
    """
    rng = np.random.default_rng(seed)
    apart_P = weight_N @ apart_NP
    mean, prompts = float(apart_P.mean()), len(apart_P)
    errors = _sign(apart_P) * _resampled(apart_P - mean, rng)
    if not freedom:
        differ = np.count_nonzero(np.abs(apart_P) > TIE)
        return Difference(mean, np.sort(np.abs(errors)), over_seeds=False, least_p=min(1.0, 2 * 0.5**differ))
    of_prompts = float(apart_P.var(ddof=1)) / prompts if prompts > 1 else 0.0
    if of_prompts > 0:
        errors *= np.sqrt(max(0.0, 1 - within / of_prompts))
    if variance > 0:
        errors += np.sqrt(variance) * rng.permutation(_student(freedom, DRAWS))
    return Difference(mean, np.sort(np.abs(errors)), over_seeds=True)


def findings(differences: Sequence[Difference], alpha: float = ALPHA) -> list[Finding]:
    """Return Holm's step-down results (1979). The probability of any false finding is at most alpha.

    Every interval has the level at which its pair was tested, so it excludes 0 exactly if the pair is significant.
    """
    order = sorted(range(len(differences)), key=lambda place: _clearest_first(differences[place]))
    by_place: dict[int, Finding] = {}
    level, corrected, open_ = alpha, 0.0, True
    for rank, place in enumerate(order):
        measured = differences[place]
        if open_:
            level = alpha / (len(order) - rank)
        half = measured.half(level)
        open_ = open_ and abs(measured.mean) > half
        corrected = max(corrected, min(1.0, measured.p_value * (len(order) - rank)))
        by_place[place] = Finding(
            measured.mean, measured.mean - half, measured.mean + half, corrected, measured.over_seeds
        )
    return [by_place[place] for place in range(len(differences))]


def _clearest_first(measured: Difference) -> tuple[float, float]:
    """Return a sort key: p, then the distance from 0 in ties, so that names do not decide the order."""
    return measured.p_value, -abs(measured.mean) / (measured.half(ALPHA) or 1.0)


@lru_cache(maxsize=256)
def _student(freedom: float, draws: int) -> Floats:
    """Return values of Student's t at equal steps of probability: their quantiles have no error of chance.

    With x = sqrt(freedom) tan(a), the density is proportional to cos(a)^(freedom - 1).
    """
    angle = np.linspace(-np.pi / 2, np.pi / 2, _ANGLES)
    density = np.maximum(np.cos(angle), 0.0) ** (freedom - 1)
    share = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    at = (np.arange(draws) + 0.5) / draws
    values: Floats = np.sqrt(freedom) * np.tan(np.interp(at, share / share[-1], angle))
    return values


def _sign(apart_P: Floats) -> float:
    """Return the sign of a difference, -1 or 1. Errors drawn with it are the same if both sides change places."""
    mean = float(apart_P.mean())
    signed = mean if mean else next((float(value) for value in apart_P if value), 1.0)
    return -1.0 if signed < 0 else 1.0


def _resampled(centred_P: Floats, rng: np.random.Generator) -> Floats:
    """Return errors of the mean under resampled prompts. P / (P - 1) corrects the variance around the sample mean."""
    size = len(centred_P)
    if size < 2:
        return np.zeros(DRAWS)
    each = max(1, _CHUNK // size)
    parts = [
        centred_P[rng.integers(0, size, size=(min(each, DRAWS - start), size), dtype=np.int32)].mean(axis=1)
        for start in range(0, DRAWS, each)
    ]
    errors: Floats = np.concatenate(parts) * np.sqrt(size / (size - 1))
    return errors


def _seed_variances(sides: Sequence[Floats]) -> list[float]:
    """Return the variance of each side's mean over its seeds."""
    return [float(side.mean(axis=1).var(ddof=1)) / len(side) for side in sides]


def _cell_variance(side_SP: Floats) -> float:
    """Return the variance of a side's mean from chance within a seed and prompt: the residual of both effects."""
    seeds, prompts = side_SP.shape
    if prompts < 2:
        return 0.0
    rest = side_SP - side_SP.mean(axis=1, keepdims=True) - side_SP.mean(axis=0, keepdims=True) + side_SP.mean()
    freedom = (seeds - 1) * (prompts - 1)
    return float((rest * rest).sum() / freedom / (seeds * prompts))
