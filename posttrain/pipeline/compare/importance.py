"""Which setting mattered: the share of the variance between trainings that each factor explains by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from posttrain.pipeline.compare.cells import Trainings
from posttrain.pipeline.compare.evaluated import EvaluatedPolicy, scores
from posttrain.pipeline.compare.factors import Factor
from posttrain.pipeline.compare.paired import with_scores
from posttrain.pipeline.compare.statistics import Floats

DRAWS = 2_000
MOST_LEVELS = 5
"""A number with more levels counts in thirds: low, middle and high."""
NOISE = 0.05
"""A larger p is not told from noise."""
HOW = (
    "Share of the variance between the trainings' mean scores: (SS - df MSE) / SS_total. SS and df are what the main "
    "effect of a setting adds to those of all others. MSE is the mean square of what all of them leave: seeds, "
    "interactions and chance. So noise has a share of 0 on average. p: how often shuffled residuals explain as much "
    f"({DRAWS:,} shuffles, Freedman and Lane 1983), not corrected for the number of settings. Each training counts as "
    "independent of the others."
)


@dataclass(frozen=True)
class Importance:
    """How much of the variance between trainings a factor explains."""

    factor: str
    levels: int
    share: float | None
    """epsilon squared, at least 0; None if it cannot be told, and `why_not` says why."""
    p_value: float | None = None
    why_not: str = ""

    @property
    def verdict(self) -> str:
        """The result in words."""
        if self.p_value is None:
            return f"cannot tell: {self.why_not}"
        return "it mattered" if self.p_value <= NOISE else "cannot tell from noise"


def importance(found: Sequence[EvaluatedPolicy]) -> list[Importance]:
    """Return the importance of each setting that varies, the largest first.

    It is empty if nothing varies, or if the trainings are of several kinds, e.g. dpo and grpo, which share no settings.
    """
    have = Trainings(found)
    if not have.factors or len({policy.section.rpartition(".")[0] for policy in have.found}) > 1:
        return []
    score_N = with_scores(scores(have.found))[0].mean(axis=1)
    codes = [_codes(factor, have) for factor in have.factors]
    shares = explained(score_N, codes)
    rows = [
        Importance(factor.path, len(np.unique(code_N)), *share)
        for factor, code_N, share in zip(have.factors, codes, shares, strict=True)
    ]
    return sorted(rows, key=lambda row: -1.0 if row.share is None else row.share, reverse=True)


def explained(
    score_N: Floats, codes: Sequence[NDArray[np.int64]], seed: int = 0
) -> list[tuple[float | None, float | None, str]]:
    """Return the share, its p and why there is none, for each factor. `codes`: each training's level."""
    total = float(((score_N - score_N.mean()) ** 2).sum())
    whole = _design(codes, len(score_N))
    freedom = len(score_N) - int(np.linalg.matrix_rank(whole))
    rng, found = np.random.default_rng(seed), list[tuple[float | None, float | None, str]]()
    for nth in range(len(codes)):
        without = _design([*codes[:nth], *codes[nth + 1 :]], len(score_N))
        added = len(score_N) - freedom - int(np.linalg.matrix_rank(without))
        if added == 0:
            found.append((None, None, "it varies together with other settings"))
        elif added < len(np.unique(codes[nth])) - 1:
            found.append((None, None, "it varies in part together with other settings"))
        elif freedom < 1:
            found.append((None, None, "too few trainings for so many settings; run more seeds"))
        elif total <= 0:
            found.append((0.0, 1.0, ""))
        else:
            fitted_N = without @ np.linalg.lstsq(without, score_N, rcond=None)[0]
            rest_N = score_N - fitted_N
            drawn_DN = np.stack([rest_N, *(rng.permutation(rest_N) for _ in range(DRAWS))])
            before_D, after_D = _left_over(without, drawn_DN), _left_over(whole, drawn_DN)
            gain_D = before_D - after_D
            share = (gain_D[0] - added * after_D[0] / freedom) / total
            ratio_D = gain_D / np.maximum(after_D, 1e-12 * total)
            as_large = int((ratio_D[1:] >= ratio_D[0] * (1 - 1e-9)).sum())
            found.append((max(0.0, float(share)), (1 + as_large) / (1 + DRAWS), ""))
    return found


def _design(codes: Sequence[NDArray[np.int64]], trainings: int) -> Floats:
    """Return the design matrix of main effects: 1, and a column for each level but the first."""
    columns = [(code_N == level).astype(float) for code_N in codes for level in np.unique(code_N)[1:]]
    return np.stack([np.ones(trainings), *columns], axis=1)


def _left_over(design: Floats, drawn_DN: Floats) -> Floats:
    """Return the sum of squares that a design leaves of each row."""
    basis, sizes, _ = np.linalg.svd(design, full_matrices=False)
    basis = basis[:, sizes > 1e-9 * sizes[0]]
    rest_DN = drawn_DN - (drawn_DN @ basis) @ basis.T
    squares: Floats = (rest_DN**2).sum(axis=1)
    return squares


def _codes(factor: Factor, have: Trainings) -> NDArray[np.int64]:
    """Return the number of each training's level. A number with many levels counts in thirds."""
    levels = [factor.level(flat) for flat in have.own]
    known = list(dict.fromkeys(levels))
    numbers = [_number(factor.text(level)) for level in levels]
    if len(known) > MOST_LEVELS and all(number is not None for number in numbers):
        edges = np.quantile(np.array(numbers, dtype=float), [1 / 3, 2 / 3])
        return np.searchsorted(edges, np.array(numbers, dtype=float)).astype(np.int64)
    return np.array([known.index(level) for level in levels], dtype=np.int64)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
