"""Find which setting mattered: the share of the variance between trainings that each factor explains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from posttrain.pipeline.compare.cells import Trainings
from posttrain.pipeline.compare.evaluated import EvaluatedPolicy, scores
from posttrain.pipeline.compare.factors import Factor
from posttrain.pipeline.compare.paired import with_scores
from posttrain.pipeline.compare.planned import Question, between_levels
from posttrain.pipeline.compare.statistics import Finding, Floats

DRAWS = 2_000
MOST_LEVELS = 5
"""A number with more levels counts in thirds: low, middle and high."""
NOISE = 0.05
"""A larger p is not told from noise."""
MOST_PAIRED = 12
"""A setting with more levels is tested by shuffles, because its pairs of levels are too many."""
HOW = (
    "Share: how much of the variance between the trainings' mean scores a setting explains beyond the other settings. "
    "Noise alone has a share of about 0. p: how often chance alone gives differences this large between its levels. "
    "The test is that of the planned questions: it pairs trainings by seed and other settings. It is corrected for the "
    "pairs of levels, not for the number of settings. A setting with planned questions has the smallest p of these. "
    f"If no trainings can be paired, as in a random search, p comes from {DRAWS:,} shuffles of the settings' means."
)


@dataclass(frozen=True)
class Importance:
    """The share of the variance between trainings that a factor explains."""

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


def importance(policies: Sequence[EvaluatedPolicy], asked: Sequence[Question] = ()) -> list[Importance]:
    """Return the importance of each setting that varies, the largest first.

    It is empty if nothing varies, or if the trainings are of several kinds, e.g. dpo and grpo, which share no settings.
    `asked`: planned questions, which decide about their settings, so that a page says the same in both places.
    """
    have = Trainings(policies)
    if not have.factors or len({policy.section.rpartition(".")[0] for policy in have.policies}) > 1:
        return []
    score_N = with_scores(scores(have.policies))[0].mean(axis=1)
    codes = [_codes(factor, have) for factor in have.factors]
    rows = []
    for index, (share, _, why_not) in enumerate(explained(score_N, codes)):
        factor, p_value = have.factors[index], None
        if not why_not:
            findings_of = [one.finding for one in asked if one.factor == factor.path and one.finding is not None]
            p_value, why_not = _tested(findings_of, have, factor) or _shuffled(have, score_N, codes)[index]
        rows.append(Importance(factor.path, len(np.unique(codes[index])), share, p_value, why_not))
    return sorted(rows, key=lambda row: -1.0 if row.share is None else row.share, reverse=True)


def _tested(asked: Sequence[Finding], have: Trainings, factor: Factor) -> tuple[float | None, str] | None:
    """Return the smallest p of a factor's planned questions, else of all pairs of its levels; None without pairs.

    The seeds are the replicates, as in `replicates`. One seed cannot tell a level's effect from its luck.
    """
    few = len(factor.levels(have.flats)) <= MOST_PAIRED
    findings = asked or (between_levels(have, factor) if few else [])
    over_seeds = [one.p_value for one in findings if one.over_seeds]
    if findings and not over_seeds:
        return None, "one seed; run more seeds"
    return (min(over_seeds), "") if over_seeds else None


def _shuffled(have: Trainings, score_N: Floats, codes: Sequence[NDArray[np.int64]]) -> list[tuple[float | None, str]]:
    """Return the p of each factor by shuffles of the settings' means, so that a setting's seeds count once."""
    keys = [key for factor in have.factors for key in factor.keys]
    settings = [tuple(map(flat.get, keys)) for flat in have.policy_settings]
    known = list(dict.fromkeys(settings))
    rows = [np.array([index for index, one in enumerate(settings) if one == setting]) for setting in known]
    means = np.array([score_N[row].mean() for row in rows])
    first = np.array([row[0] for row in rows])
    return [(p_value, why_not) for _, p_value, why_not in explained(means, [code_N[first] for code_N in codes])]


def explained(
    score_N: Floats, codes: Sequence[NDArray[np.int64]], seed: int = 0
) -> list[tuple[float | None, float | None, str]]:
    """Return each factor's share, its p, and the reason if it has none. `codes`: each training's level."""
    total = float(((score_N - score_N.mean()) ** 2).sum())
    whole = _design(codes, len(score_N))
    freedom = len(score_N) - int(np.linalg.matrix_rank(whole))
    rng, results = np.random.default_rng(seed), list[tuple[float | None, float | None, str]]()
    for index in range(len(codes)):
        without = _design([*codes[:index], *codes[index + 1 :]], len(score_N))
        added = len(score_N) - freedom - int(np.linalg.matrix_rank(without))
        if added == 0:
            results.append((None, None, "it varies together with other settings"))
        elif added < len(np.unique(codes[index])) - 1:
            results.append((None, None, "it varies in part together with other settings"))
        elif freedom < 1:
            results.append((None, None, "too few trainings for so many settings; run more seeds"))
        elif total <= 0:
            results.append((0.0, 1.0, ""))
        else:
            fitted_N = without @ np.linalg.lstsq(without, score_N, rcond=None)[0]
            rest_N = score_N - fitted_N
            drawn_DN = np.stack([rest_N, *(rng.permutation(rest_N) for _ in range(DRAWS))])
            before_D, after_D = _left_over(without, drawn_DN), _left_over(whole, drawn_DN)
            gain_D = before_D - after_D
            share = (gain_D[0] - added * after_D[0] / freedom) / total
            ratio_D = gain_D / np.maximum(after_D, 1e-12 * total)
            as_large = int((ratio_D[1:] >= ratio_D[0] * (1 - 1e-9)).sum())
            results.append((max(0.0, float(share)), (1 + as_large) / (1 + DRAWS), ""))
    return results


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
    levels = [factor.level(flat) for flat in have.policy_settings]
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
