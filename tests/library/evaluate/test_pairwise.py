"""The laws of win rates and ratings, numbers by other methods, and how often a pair seems clear by chance."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import polars as pl
import pytest
from numpy.testing import assert_allclose

from posttrain.evaluate.intervals import Floats
from posttrain.evaluate.pairwise import (
    always_valid,
    evidence,
    is_clear,
    length_controlled,
    ranks,
    rated_again,
    ratings,
    resampled,
    spread,
    tallies,
    wins_by_prompt,
    with_numbers,
)

POLICIES, PROMPTS = 5, 60
PAIRS = list(combinations(range(POLICIES), 2))
BATCH = 20


@pytest.fixture
def wins_PQ() -> Floats:  # noqa: N802  its axes
    """Matches of five policies of rising strength, some of them without a verdict."""
    rng = np.random.default_rng(3)
    shares = [1 / (1 + math.exp(0.5 * (other - one))) for one, other in PAIRS]
    found = (rng.random((PROMPTS, len(PAIRS))) < shares).astype(float)
    found[rng.random(found.shape) < 0.2] = 0.5
    found[rng.random(found.shape) < 0.1] = np.nan
    return found


def rated(wins_PQ: Floats, pairs: list[tuple[int, int]], seed: int = 1) -> Floats:
    return ratings(*tallies(wins_PQ, resampled(len(wins_PQ), seed), seed), pairs)


def rates(wins_PQ: Floats, seed: int = 1) -> Floats:
    won_RQ, played_RQ = tallies(wins_PQ, resampled(len(wins_PQ), seed), seed)
    return won_RQ / played_RQ


def controlled(wins: Floats, longer: Floats) -> float:
    each = np.arange(len(wins))
    return float(length_controlled(wins, longer, each, np.ones((1, len(wins))))[0])


def test_what_one_wins_the_other_loses(wins_PQ: Floats) -> None:
    wins_PQ[:, 0] = 1.0
    assert_allclose(rates(wins_PQ) + rates(1 - wins_PQ), 1.0)
    turned = [(other, one) for one, other in PAIRS]
    assert_allclose(rated(wins_PQ, PAIRS), rated(1 - wins_PQ, turned), atol=1e-6)
    wins, longer = np.array([1.0, 0.0, 0.5, 1.0, 1.0]), np.array([3.0, -2.0, 1.0, 0.0, 8.0])
    assert controlled(wins, longer) + controlled(1 - wins, -longer) == pytest.approx(1.0)
    low, high = always_valid(wins, 0.2)
    assert always_valid(1 - wins, 0.2) == pytest.approx((1 - high, 1 - low))


def test_the_order_of_policies_changes_no_rating(wins_PQ: Floats) -> None:
    found_RK = rated(wins_PQ, PAIRS)
    place = [3, 0, 4, 1, 2]
    moved_RK = rated(wins_PQ, [(place[one], place[other]) for one, other in PAIRS])
    assert_allclose(moved_RK[:, place], found_RK, atol=1e-6)
    assert (ranks(moved_RK)[:, place] == ranks(found_RK)).all()
    assert_allclose(found_RK.sum(axis=1), 0.0, atol=1e-6)


def test_equal_policies_have_equal_ratings_and_ranks(wins_PQ: Floats) -> None:
    """The last two have the same matches against all others, and tie with each other."""
    for one in range(3):
        wins_PQ[:, PAIRS.index((one, 4))] = wins_PQ[:, PAIRS.index((one, 3))]
    wins_PQ[:, PAIRS.index((3, 4))] = 0.5
    found_RK = rated(wins_PQ, PAIRS)
    assert_allclose(found_RK[:, 3], found_RK[:, 4], atol=1e-6)
    assert (ranks(found_RK)[:, 3] == ranks(found_RK)[:, 4]).all()
    assert_allclose(rated(np.full_like(wins_PQ, 0.5), PAIRS), 0.0, atol=1e-9)


def test_two_policies_have_the_rating_of_their_win_rate() -> None:
    """By hand: 30 of 40 won, and one drawn prompt more: 400 log10(30.5 / 10.5) points between them."""
    wins_PQ = np.array([1.0] * 30 + [0.0] * 10)[:, None]
    first, second = rated(wins_PQ, [(0, 1)])[0]
    assert first - second == pytest.approx(400 * math.log10(30.5 / 10.5))


def test_a_policy_that_always_wins_has_a_finite_rating_and_an_exact_bound() -> None:
    """Its rating is that of one drawn prompt more, and the upper end of its interval."""
    wins_PQ, bound = np.ones((40, 1)), 0.025 ** (1 / 40)
    found_RK = rated(wins_PQ, [(0, 1)])
    assert found_RK[0, 0] - found_RK[0, 1] == pytest.approx(400 * math.log10(40.5 / 0.5))
    assert spread(rates(wins_PQ)[:, 0]) == (pytest.approx(bound, abs=0.01), 1.0)
    assert spread(rates(1 - wins_PQ)[:, 0]) == (0.0, pytest.approx(1 - bound, abs=0.01))
    low, high = spread(found_RK[:, 0] - found_RK[:, 1])
    least = (40 * bound + 0.5) / (40 * (1 - bound) + 0.5)
    assert (low, high) == (pytest.approx(400 * math.log10(least), abs=20), found_RK[0, 0] - found_RK[0, 1])


@pytest.mark.slow
def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    rng, covered = np.random.default_rng(5), 0
    for trial in range(100):
        wins_P = rng.choice([0.0, 0.5, 1.0], 100, p=[0.2, 0.3, 0.5])
        low, high = spread(rates(wins_P[:, None], trial)[:, 0])
        covered += low <= 0.65 <= high
    assert covered >= 88


def test_where_lengths_do_not_matter_the_controlled_rate_is_the_win_rate() -> None:
    wins = np.array([1.0, 1.0, 0.5, 0.0] * 10)
    assert controlled(wins, np.zeros(40)) == pytest.approx(wins.mean())
    balanced = np.concatenate([wins, wins]), np.repeat([7.0, -7.0], 40)
    assert controlled(*balanced) == pytest.approx(wins.mean())


def test_a_judge_of_length_alone_has_a_controlled_rate_of_one_half() -> None:
    """The first policy writes more and wins by it; of two equally long texts each would win half."""
    rng = np.random.default_rng(7)
    longer = rng.normal(20, 30, 2000)
    wins = (rng.random(2000) < 1 / (1 + np.exp(-longer / 30))).astype(float)
    assert wins.mean() > 0.6 and controlled(wins, longer) == pytest.approx(0.5, abs=0.03)


def test_the_controlled_rate_is_the_optimum_that_gradient_ascent_finds() -> None:
    rng = np.random.default_rng(9)
    longer, wins = rng.normal(4, 10, 80), rng.choice([0.0, 0.5, 1.0], 80, p=[0.3, 0.1, 0.6])
    x, a, b = longer / math.sqrt(np.mean(longer**2)), 0.0, 0.0
    for _ in range(20_000):
        rest = wins - 1 / (1 + np.exp(-(a + b * x)))
        a, b = a + 0.01 * rest.sum(), b + 0.01 * (float(rest @ x) - b)
    assert controlled(wins, longer) == pytest.approx(1 / (1 + math.exp(-a)), abs=1e-9)


def test_the_interval_of_the_controlled_rate_is_that_of_whole_fits() -> None:
    rng = np.random.default_rng(11)
    longer, wins = rng.normal(4, 10, 300), (rng.random(300) < 0.7).astype(float)
    quick = spread(length_controlled(wins, longer, np.arange(300), resampled(300, 1)))
    scale = math.sqrt(np.mean(longer**2))
    picks = rng.integers(0, 300, (400, 300))
    # the whole fits have the scale of the whole table too: a resample's own moves only the prior
    whole = [controlled(wins[pick], longer[pick] / scale) for pick in picks]
    assert quick == pytest.approx(tuple(np.quantile(whole, [0.025, 0.975])), abs=0.012)


@pytest.mark.slow
@pytest.mark.parametrize("chances", [[0.5, 0.0, 0.5], [0.2, 0.6, 0.2], [0.4, 0.2, 0.4]])
@pytest.mark.parametrize("alpha", [0.05, 0.2])
def test_equal_policies_seem_clear_with_a_chance_of_at_most_alpha(chances: list[float], alpha: float) -> None:
    """However often one looks: after each batch of up to 400 prompts. 600 trials, three standard errors."""
    rng, trials = np.random.default_rng(13), 600
    drawn = rng.choice([0.0, 0.5, 1.0], (trials, 400), p=chances)
    stopped = sum(any(is_clear(wins[:end], alpha) for end in range(BATCH, 401, BATCH)) for wins in drawn)
    assert stopped / trials <= alpha + 3 * math.sqrt(alpha * (1 - alpha) / trials)


@pytest.mark.parametrize(("share", "most"), [(0.9, 30), (0.75, 70), (0.6, 330)])
def test_a_clear_answer_saves_questions(share: float, most: float) -> None:
    """Of 500 prompts; the mean of 100 trials."""
    rng = np.random.default_rng(17)
    asked = []
    for wins in (rng.random((100, 500)) < share).astype(float):
        asked.append(next((end for end in range(BATCH, 500, BATCH) if is_clear(wins[:end], 0.05)), 500))
    assert np.mean(asked) <= most


def test_the_always_valid_interval_holds_at_every_look() -> None:
    """It is where the evidence is below 1 / alpha, so it misses the truth when the evidence against that is above."""
    rng, missed, alpha = np.random.default_rng(19), 0, 0.1
    drawn = (rng.random((300, 200)) < 0.7).astype(float)
    for wins in drawn:
        missed += any(evidence(wins[:end], np.array([0.7]))[0] >= 1 / alpha for end in range(BATCH, 201, BATCH))
    assert missed / 300 <= alpha
    low, high = always_valid(drawn[0], alpha)
    assert low < 0.7 < high and (evidence(drawn[0], np.array([low - 0.002, high + 0.002])) > 1 / alpha).all()
    assert evidence(np.ones(10_000), np.array([0.5]))[0] > 1e300, "no overflow"


def test_a_resample_without_a_prompt_of_the_pair_has_no_controlled_rate() -> None:
    """Five prompts of twenty have a verdict, so some resamples hold none of them."""
    wins, longer, prompts = np.array([1.0, 0.0, 1.0, 0.0, 1.0]), np.array([3.0, -2.0, 1.0, 0.0, 8.0]), np.arange(5)
    weights_RP = resampled(20, seed=1)
    rates_R = length_controlled(wins, longer, prompts, weights_RP)
    empty_R = weights_RP[:, :5].sum(axis=1) == 0
    assert empty_R.any() and np.array_equal(np.isnan(rates_R), empty_R)
    low, high = spread(rates_R)
    assert 0 <= low < rates_R[0] < high <= 1
    some_R = length_controlled(wins, longer, prompts, weights_RP[~empty_R])
    assert np.array_equal(rates_R[~empty_R], some_R)


MATCHES = pl.DataFrame(
    [("b", "x", "y", 1.0), ("a", "x", "y", 0.0), ("b", "x", "y", 0.0), ("a", "x", "z", None), ("b", "x", "z", 1.0)],
    schema=["prompt_id", "first", "second", "win"], orient="row",
)  # fmt: skip


def test_matches_by_prompt() -> None:
    assert with_numbers(MATCHES)["number"].to_list() == [1, 0, 1, 0, 1]
    found = wins_by_prompt(MATCHES, [("x", "y"), ("x", "z")])
    assert_allclose(found, [[0.0, np.nan], [0.5, 1.0]])


def test_ratings_of_matches_alone() -> None:
    found = rated_again(MATCHES)
    assert [*found] == ["x", "y", "z"] and found["y"] > found["x"] > found["z"]
    assert all(rating == round(rating, 2) for rating in found.values())


def test_an_interval_for_any_number_of_prompts() -> None:
    low, high = always_valid(np.array([1.0, 0.0] * 40), 0.05)
    assert low < 0.5 < high and low + high == pytest.approx(1.0, abs=1e-6)
    wider = always_valid(np.array([1.0, 0.0] * 10), 0.05)
    assert wider[0] < low and high < wider[1]
    assert is_clear(np.ones(60), 0.05) is True and is_clear(np.array([1.0, 0.0] * 20), 0.05) is False
