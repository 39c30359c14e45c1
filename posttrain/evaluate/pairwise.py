"""Statistics of matches between policies: win rates, ratings, and whether a result is clear.

P prompts, Q pairs of policies, K policies, R resamples of the prompts. A win counts 1, a tie 1/2, a loss 0. NaN: the
pair has no verdict on the prompt.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from posttrain.evaluate.intervals import RESAMPLES, Floats

ELO: Final = 400 / math.log(10)
"""Rating points per unit of log-odds. A difference of 400 points means 10 wins to 1."""
DRAWN: Final = 1.0
"""Drawn matches that are added to each pair, so that a policy that always wins has a finite rating."""
BETS: Final = (1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 3 / 4)
"""The shares of capital that gamblers against 'equally good' bet on each prompt, all in parallel."""
Pair = tuple[str, str]
"""The labels of two policies."""
LEVEL: Final = 0.95
_GRID: Final = np.arange(1, 1000) / 1000


def resampled(prompts: int, seed: int) -> Floats:
    """Return prompt counts [1 + R, P]: 1 in the first row; in other rows, counts of a draw with replacement.

    Every estimate is computed for all rows at once. The first row gives the estimate, the others its spread.
    """
    drawn = np.random.default_rng(seed).multinomial(prompts, np.full(prompts, 1 / prompts), size=RESAMPLES)
    return np.vstack([np.ones(prompts), drawn])


def spread(values_R: Floats) -> tuple[float, float]:
    """Return the percentile interval of an estimate. The first value is the estimate and lies in the interval."""
    low, high = np.nanquantile(values_R[1:], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(min(low, values_R[0])), float(max(high, values_R[0]))


def tallies(wins_PQ: Floats, weights_RP: Floats, seed: int) -> tuple[Floats, Floats]:
    """Return the wins of each pair and the number of prompts with a verdict, each [1 + R, Q].

    If all n prompts were won, resamples do not differ. Then a resample's rate is u^(1/n) with uniform u, whose lower
    end is the exact bound of Clopper and Pearson (1934). If all were lost, it is one minus that.
    """
    played_RQ: Floats = weights_RP @ (~np.isnan(wins_PQ)).astype(float)
    won_RQ: Floats = weights_RP @ np.nan_to_num(wins_PQ)
    luck_R = np.append(1.0, np.random.default_rng([seed, 1]).random(len(weights_RP) - 1))
    for index, wins_P in enumerate(wins_PQ.T):
        known = wins_P[~np.isnan(wins_P)]
        if known.min() == 1 or known.max() == 0:
            rate_R = luck_R ** (1 / len(known))
            won_RQ[:, index] = played_RQ[:, index] * (rate_R if known[0] else 1 - rate_R)
    return won_RQ, played_RQ


def ratings(won_RQ: Floats, played_RQ: Floats, pairs: Sequence[tuple[int, int]]) -> Floats:
    """Return the Bradley-Terry (1952) ratings in points, [R, K], with mean 0.

    P(i beats j) = 1 / (1 + 10^((rating_j - rating_i) / 400)), fitted by maximum likelihood with Newton's method, with
    drawn matches added to each pair (`DRAWN`).
    """
    count = 1 + max(max(pair) for pair in pairs)
    design_QK = np.zeros((len(pairs), count))
    for index, (first, second) in enumerate(pairs):
        design_QK[index, first], design_QK[index, second] = 1.0, -1.0
    won_RQ, played_RQ = won_RQ + DRAWN / 2, played_RQ + DRAWN
    found_RK = np.zeros((len(won_RQ), count))
    for _ in range(100):
        share_RQ = _sigmoid(found_RK @ design_QK.T)
        gradient_RK = (won_RQ - played_RQ * share_RQ) @ design_QK
        curve_RQ = played_RQ * share_RQ * (1 - share_RQ)
        hessian_RKK = np.einsum("rq,qi,qj->rij", curve_RQ, design_QK, design_QK) + 1.0  # the 1 keeps the mean at 0
        step_RK = np.linalg.solve(hessian_RKK, gradient_RK[..., None])[..., 0].clip(-1, 1)
        found_RK += step_RK
        if np.abs(step_RK).max() < 1e-9:
            break
    points_RK: Floats = ELO * (found_RK - found_RK.mean(axis=1, keepdims=True))
    return points_RK


def ranks(ratings_RK: Floats) -> Floats:
    """Return 1 + the number of policies with a higher rating, [R, K].

    Ratings within a millionth of a point are equal.
    """
    rounded_RK = ratings_RK.round(6)
    ranks_RK: Floats = 1 + (rounded_RK[:, None, :] > rounded_RK[:, :, None]).sum(axis=2)
    return ranks_RK


def length_controlled(wins_M: Floats, longer_M: Floats, prompt_M: NDArray[np.int64], weights_RP: Floats) -> Floats:
    """Return a pair's win rate as if both wrote texts of equal length, [R] (after Dubois et al. 2024).

    P(win) = sigmoid(a + b x). x is the difference of the lengths in a match, divided by its root mean square. Each
    prompt has the same weight, b has the prior N(0, 1), and the result is sigmoid(a). The wins must not all be 1 or all
    0. Resamples take one Newton step from the fit. NaN: the resample contains no prompt of the pair.
    """
    prompts = weights_RP.shape[1]
    weight_M = 1 / np.bincount(prompt_M, minlength=prompts)[prompt_M]
    scale = math.sqrt(float(np.mean(longer_M**2))) or 1.0
    x_M2 = np.stack([np.ones_like(longer_M), longer_M / scale], axis=1)
    prior = np.array([0.0, 1.0])
    fit = np.zeros(2)
    for _ in range(100):
        share_M = _sigmoid(x_M2 @ fit)
        gradient_M2 = (weight_M * (wins_M - share_M))[:, None] * x_M2
        hessian_M22 = (weight_M * share_M * (1 - share_M))[:, None, None] * x_M2[:, :, None] * x_M2[:, None, :]
        step = np.linalg.solve(hessian_M22.sum(axis=0) + np.diag(prior), gradient_M2.sum(axis=0) - prior * fit)
        fit = fit + step.clip(-1, 1)
        if np.abs(step).max() < 1e-10:
            break
    gradient_P2, hessian_P22 = np.zeros((prompts, 2)), np.zeros((prompts, 2, 2))
    np.add.at(gradient_P2, prompt_M, gradient_M2)
    np.add.at(hessian_P22, prompt_M, hessian_M22)
    hessian_R22 = np.einsum("rp,pij->rij", weights_RP, hessian_P22) + np.diag(prior)
    empty_R = weights_RP[:, np.unique(prompt_M)].sum(axis=1) == 0
    hessian_R22[empty_R] = np.eye(2)
    step_R2 = np.linalg.solve(hessian_R22, (weights_RP @ gradient_P2 - prior * fit)[..., None])[..., 0]
    return np.where(empty_R, np.nan, _sigmoid(fit[0] + step_R2[:, 0]))


def evidence(wins_P: Floats, means: Floats) -> Floats:
    """Return the evidence against each mean win rate: the capital of gamblers who started with 1.

    They bet shares of it (`BETS`) on each prompt, half of them on more and half on less than the mean. If the mean is
    right, the probability that the capital ever reaches 1 / alpha is at most alpha (Ville), however often one looks.
    """
    bets, means_1 = np.array(BETS)[:, None, None], means[None, :, None]
    up = np.log1p(bets * (wins_P / means_1 - 1)).sum(axis=2)
    down = np.log1p(bets * ((1 - wins_P) / (1 - means_1) - 1)).sum(axis=2)
    log_capital = np.logaddexp.reduce(np.vstack([up, down]), axis=0) - math.log(2 * len(BETS))
    capital: Floats = np.exp(np.minimum(log_capital, 700.0))
    return capital


def is_clear(wins_P: Floats, alpha: float) -> bool:
    """Tell whether one policy is clearly better so far.

    For equal ones the chance that this is ever true is < alpha.
    """
    return bool(evidence(wins_P, np.array([0.5]))[0] >= 1 / alpha)


def always_valid(wins_P: Floats, alpha: float) -> tuple[float, float]:
    """Return an interval of the win rate that is valid for any rule to choose the number of prompts."""
    inside = _GRID[evidence(wins_P, _GRID) < 1 / alpha]
    if not len(inside):  # narrower than the grid
        return float(wins_P.mean()), float(wins_P.mean())
    return float(inside[0] - _GRID[0]), float(inside[-1] + _GRID[0])


def _sigmoid(x: Floats) -> Floats:
    values: Floats = 1 / (1 + np.exp(-x))
    return values


def with_numbers(matches: pl.DataFrame) -> pl.DataFrame:
    """Return the matches with prompt numbers, ordered by id. Ties and labels do not affect the numbers."""
    return matches.with_columns(number=pl.col("prompt_id").rank("dense").cast(pl.Int64) - 1)


def wins_by_prompt(matches: pl.DataFrame, pairs: Sequence[Pair]) -> Floats:
    """Return the mean win of each pair on each prompt, [P, Q]; NaN if there is no verdict."""
    wins_PQ = np.full((matches["prompt_id"].n_unique(), len(pairs)), np.nan)
    column = {pair: index for index, pair in enumerate(pairs)}
    known = with_numbers(matches).drop_nulls("win").group_by("number", "first", "second").agg(pl.col("win").mean())
    for number, one, other, win in known.iter_rows():
        wins_PQ[number, column[one, other]] = win
    return wins_PQ


def rated_again(matches: pl.DataFrame) -> dict[str, float]:
    """Return the rating of each policy, computed only from the matches."""
    pairs: list[Pair] = matches.select("first", "second").unique(maintain_order=True).rows()
    labels = list(dict.fromkeys(label for pair in pairs for label in pair))
    wins_PQ = wins_by_prompt(matches, pairs)
    numbers = [(labels.index(one), labels.index(other)) for one, other in pairs]
    found_RK = ratings(*tallies(wins_PQ, np.ones((1, len(wins_PQ))), seed=0), numbers)
    return {label: round(float(rating), 2) for label, rating in zip(labels, found_RK[0], strict=True)}
