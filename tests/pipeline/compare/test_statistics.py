"""The intervals hold what they promise, on trainings whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.pipeline.compare.statistics import (
    ALPHA,
    DRAWS,
    Difference,
    Floats,
    _student,
    difference,
    findings,
    paired,
)
from tests.pipeline.compare.simulated import prompts, side


@pytest.mark.slow
@pytest.mark.parametrize(
    ("left", "right", "luck"),
    [(2, 2, (0.4, 0.4)), (3, 3, (0.0, 0.0)), (3, 3, (0.1, 0.6)), (2, 5, (0.4, 0.4))],
)
def test_an_interval_covers_the_truth(left: int, right: int, luck: tuple[float, float]) -> None:
    """Equal settings: the truth is 0. 200 trials tell 0.95 from 0.9 or less."""
    rng, trials, covered = np.random.default_rng(7), 200, 0
    for _ in range(trials):
        difficulty = prompts(rng)
        one = difference(side(rng, difficulty, 1, left, luck[0]), side(rng, difficulty, 1, right, luck[1]))
        covered += abs(one.mean) <= one.half(ALPHA)
    assert covered / trials > 0.905


@pytest.mark.slow
def test_resampling_two_seeds_would_not_cover() -> None:
    """Why seeds are not resampled like prompts: with two of them the interval misses the truth far too often."""
    rng, trials, covered = np.random.default_rng(8), 150, 0
    for _ in range(trials):
        difficulty = prompts(rng)
        left, right = side(rng, difficulty, 1, 2, 0.4), side(rng, difficulty, 1, 2, 0.4)
        picks = [rng.integers(0, left.shape[1], left.shape[1]) for _ in range(200)]
        drawn = [_resampled(rng, left[:, pick]) - _resampled(rng, right[:, pick]) for pick in picks]
        low, high = np.quantile(drawn, [0.025, 0.975])
        covered += low <= 0 <= high
    assert covered / trials < 0.9


@pytest.mark.slow
def test_one_seed_covers_the_difference_of_the_two_trainings_over_prompts() -> None:
    rng, trials, covered = np.random.default_rng(9), 400, 0
    for _ in range(trials):
        apart = rng.exponential(1.0, 40)  # skewed, with mean 1
        one = difference(apart[None], np.zeros((1, 40)))
        assert not one.over_seeds
        covered += abs(one.mean - 1) <= one.half(ALPHA)
    assert 0.9 < covered / trials < 0.99


def fixed_start_trial(rng: np.random.Generator, seeds: int) -> tuple[Floats, Floats]:
    """A setting that on average keeps the score of its start, a single model; its seeds differ."""
    start = rng.random((1, 40)) * 0.4 + 0.3
    return start + rng.normal(0, 0.1, (seeds, 1)) + rng.normal(0, 0.05, (seeds, 40)), start


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_several_seeds_against_one_start_are_rarely_called_different(seeds: int) -> None:
    """Over the prompts alone a third of such settings would be told from their start."""
    rng, trials = np.random.default_rng(13), 120
    pairs = [fixed_start_trial(rng, seeds) for _ in range(trials)]
    told = sum(findings([difference(*pair)])[0].significant for pair in pairs)
    alone = sum(findings([difference(left.mean(axis=0, keepdims=True), start)])[0].significant for left, start in pairs)
    assert told / trials < 0.1 < 0.3 < alone / trials


@pytest.mark.slow
def test_equal_settings_are_rarely_called_different() -> None:
    """Four equal settings, six pairs: in at most about 5 of 100 sweeps any pair is told."""
    rng, trials, wrong = np.random.default_rng(10), 100, 0
    for _ in range(trials):
        difficulty = prompts(rng)
        sides = [side(rng, difficulty, 1, 3, 0.3) for _ in range(4)]
        wrong += any(one.significant for one in findings(_all_pairs(sides)))
    assert wrong / trials < 0.1


@pytest.mark.slow
def test_a_clear_gain_is_found() -> None:
    """Five seeds, a clear gain: nearly always told, and the right way round."""
    rng, trials, right = np.random.default_rng(11), 60, 0
    for _ in range(trials):
        difficulty = prompts(rng)
        found = findings([difference(side(rng, difficulty, 2, 5, 0.2), side(rng, difficulty, 0.5, 5, 0.2))])[0]
        right += found.significant and found.mean > 0
    assert right / trials > 0.95


def test_pairing_by_prompt_narrows_the_interval() -> None:
    rng = np.random.default_rng(12)
    difficulty = prompts(rng)
    left, right = side(rng, difficulty, 1.5, 1, 0), side(rng, difficulty, 1, 1, 0)
    shuffled = right[:, rng.permutation(right.shape[1])]
    assert difference(left, right).half(ALPHA) < 0.8 * difference(left, shuffled).half(ALPHA)


SIDES = st.integers(0, 2**32 - 1).map(np.random.default_rng)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(SIDES, st.integers(1, 4), st.integers(1, 4))
def test_swapping_the_sides_only_changes_the_sign(rng: np.random.Generator, left: int, right: int) -> None:
    one, two = rng.random((left, 12)), rng.random((right, 12))
    there, back = difference(one, two), difference(two, one)
    assert there.mean == -back.mean
    assert there.half(ALPHA) == back.half(ALPHA) and there.p_value == back.p_value
    assert there.over_seeds == (min(left, right) > 1)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(SIDES, st.integers(2, 6))
def test_corrected_levels_are_in_order_and_agree_with_the_verdict(rng: np.random.Generator, settings_: int) -> None:
    sides = [rng.random((3, 20)) * 0.3 + rng.random() * 0.5 for _ in range(settings_)]
    differences = _all_pairs(sides)
    found = findings(differences)
    for one, raw in zip(found, differences, strict=True):
        assert one.low <= one.mean <= one.high
        assert one.p_value >= raw.p_value
        assert one.high - one.low >= 2 * raw.half(ALPHA) - 1e-12, "a corrected interval is no narrower"
        assert one.significant == (one.p_value <= ALPHA) or one.p_value == pytest.approx(ALPHA, rel=0.05)
    ranked = sorted(range(len(found)), key=lambda nth: differences[nth].p_value)
    significant = [found[nth].significant for nth in ranked]
    assert significant == sorted(significant, reverse=True), "after the first that is not significant, none is"


def test_equal_scores_have_difference_zero() -> None:
    scores = np.full((2, 10), 0.5)
    assert difference(scores, scores).half(ALPHA) == 0.0
    assert not findings([difference(scores, scores)])[0].significant


def _all_pairs(sides: list[Floats]) -> list[Difference]:
    return [difference(sides[i], sides[j]) for i in range(len(sides)) for j in range(i)]


def _resampled(rng: np.random.Generator, scores_SP: Floats) -> float:
    seeds = rng.integers(0, len(scores_SP), len(scores_SP))
    return float(scores_SP[seeds].mean())


@pytest.mark.parametrize(("count", "clear"), [(1, False), (2, False), (5, False), (6, True), (20, True)])
def test_so_few_prompts_cannot_tell_as_the_sign_test_cannot(count: int, *, clear: bool) -> None:
    """Resampled, prompts that all differ by the same have no error, also where there is one of them."""
    measured = difference(np.full((1, count), 1.0), np.full((1, count), 0.75))
    (found,) = findings([measured])
    assert found.significant is clear and found.mean == 0.25
    assert found.p_value >= (2 * 0.5**count if count > 1 else 1.0)
    assert found.p_value < ALPHA if clear else found.low == 0


@pytest.mark.parametrize(
    ("prompts", "better", "clear"), [(10, 5, False), (20, 4, False), (500, 5, False), (20, 6, True)]
)
def test_prompts_that_do_not_differ_show_nothing(prompts: int, better: int, *, clear: bool) -> None:
    """As by the sign test, for which ties do not count."""
    right = np.zeros((1, prompts))
    left = right.copy()
    left[0, :better] = 1.0
    (found,) = findings([difference(left, right)])
    assert found.p_value >= 2 * 0.5**better and found.significant is clear


@pytest.mark.parametrize(("freedom", "table"), [(1, 12.7062), (2, 4.3027), (5, 2.5706), (30, 2.0423)])
def test_the_quantiles_of_students_t_are_those_of_the_tables(freedom: int, table: float) -> None:
    sizes = np.sort(np.abs(_student(freedom, DRAWS)))
    assert sizes[int(0.95 * len(sizes))] == pytest.approx(table, rel=2e-3)
    alike = np.array([[0.4] * 30, [0.6] * 30])  # the prompts do not differ: only the error of the seeds counts
    half = paired(alike, np.array([0.5, 0.5]), 0.0, 0.01, freedom).half(0.05)
    assert half == pytest.approx(0.1 * table, rel=2e-3)
