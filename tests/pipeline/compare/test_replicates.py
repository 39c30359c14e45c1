"""What repeats in a contrast, and whether its intervals hold what they promise, on trainings whose truth is known."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product

import numpy as np
import pytest

from posttrain.pipeline.compare import statistics
from posttrain.pipeline.compare.replicates import Contrast, Replicates, replicates
from posttrain.pipeline.compare.statistics import ALPHA, Floats

PROMPTS = 30


def contrast(apart_CS: Floats, rng: np.random.Generator | None = None) -> Contrast:
    """Pairs of which each has this difference, for each combination of the other settings and seed."""
    labels = list(product(range(apart_CS.shape[0]), range(apart_CS.shape[1])))
    noise = rng.normal(0, 0.05, (len(labels), PROMPTS)) if rng else np.zeros((len(labels), PROMPTS))
    apart_NP = apart_CS.reshape(-1, 1) + noise
    return Contrast(apart_NP, [context for context, _ in labels], [str(seed) for _, seed in labels])


def test_the_two_variances_by_hand() -> None:
    """Two combinations, three seeds that act alike in both: the seeds' means are 0, 3 and 6."""
    found = contrast(np.array([[0.0, 3.0, 6.0], [1.0, 4.0, 7.0]]) - 0.5)
    assert (found.count, found.freedom) == (3, 4) and found.weights == pytest.approx(1 / 6)
    assert found.by_pair == pytest.approx((9 + 9) * 2 / 4 / 6)  # s^2 = 9, six pairs
    assert found.by_seed == pytest.approx(9 / 3)  # the variance of 0, 3, 6 is 9, three seeds
    assert found.within == 0.0


def test_each_combination_of_the_other_settings_counts_the_same() -> None:
    values = np.array([[1.0], [1.0], [1.0], [5.0], [3.0]]) @ np.ones((1, 4))
    found = Contrast(values, ["a", "a", "a", "b", "b"], ["1", "2", "3", "1", "2"])
    assert found.weights == pytest.approx([1 / 6, 1 / 6, 1 / 6, 1 / 4, 1 / 4])
    assert Replicates("pairs").difference(found).mean == pytest.approx((1 + 4) / 2)
    # two pairs of b differ by 1 from their mean: s^2 = 2 / 3, sum w^2 = 3/36 + 2/16
    assert found.by_pair == pytest.approx(2 / 3 * (3 / 36 + 2 / 16))


def test_seeds_that_act_alike_are_counted_by_seed() -> None:
    alike = contrast(np.array([[0.0, 3.0, 6.0], [1.0, 4.0, 7.0]]))
    assert replicates([alike]) == Replicates("seeds", 2, alike.by_seed * 3)
    apart = contrast(np.array([[0.0, 3.0, 6.0], [7.0, 4.0, 1.0]]))
    assert replicates([apart]).kind == "pairs"
    narrow, wide = (Replicates(kind).difference(apart).half(ALPHA) for kind in ("pairs", "seeds"))
    assert narrow <= wide
    assert replicates([]).kind == "pairs" and replicates([contrast(np.array([[1.0], [2.0]]))]).kind == "pairs"


def test_an_own_variance_that_is_larger_than_the_pooled_one_counts() -> None:
    steady, wild = contrast(np.array([[0.9, 1.0, 1.1]])), contrast(np.array([[-1.0, 1.0, 3.0]]))
    found = replicates([steady, wild, wild])
    assert found.levels == 3 and found.of_one_seed == pytest.approx((0.01 + 4 + 4) / 3)
    assert found.difference(steady).half(ALPHA) == pytest.approx(2.776 * np.sqrt(found.of_one_seed / 3), rel=0.02)
    assert found.difference(wild).half(ALPHA) == pytest.approx(4.303 * np.sqrt(4 / 3), rel=0.05)


def test_one_seed_covers_prompts_alone() -> None:
    rng = np.random.default_rng(1)
    measured = replicates([]).difference(contrast(np.full((3, 1), 0.5), rng))
    assert not measured.over_seeds and measured.mean == pytest.approx(0.5, abs=0.03)
    assert 0 < measured.half(ALPHA) < 0.02


CASES = {
    "independent pairs": (2, 4, 3, 0.0, 0.02, (1, 1)),
    "seeds act alike": (4, 2, 3, 0.02, 0.005, (1, 1, 1, 1)),
    "both": (4, 2, 3, 0.015, 0.02, (1, 1, 1, 1)),
    "one level is less stable": (4, 2, 3, 0.02, 0.005, (1, 6, 1, 1)),
    "two seeds": (4, 2, 2, 0.015, 0.02, (1, 1, 1, 1)),
}


def levels(rng: np.random.Generator, case: str) -> list[Contrast]:
    """The contrasts of each level with the first one, then all others; all levels are equal in truth."""
    count, contexts, seeds, alike, own, scale = CASES[case]
    by = np.array(scale, dtype=float)[:, None, None]
    score = by * (rng.normal(0, alike, (count, 1, seeds)) + rng.normal(0, own, (count, contexts, seeds)))
    pairs = [(one, other) for other, one in combinations(range(count), 2)]
    return [contrast(score[one] - score[other], rng) for one, other in pairs]


def coverage(case: str, trials: int, monkeypatch: pytest.MonkeyPatch) -> Sequence[float]:
    monkeypatch.setattr(statistics, "DRAWS", 2_000)
    rng, covered = np.random.default_rng(11), []
    for _ in range(trials):
        contrasts = levels(rng, case)
        found = replicates(contrasts)
        first = [found.difference(one) for one in contrasts[: CASES[case][0] - 1]]
        covered.append([abs(one.mean) <= one.half(ALPHA) for one in first])
    means: list[float] = np.mean(covered, axis=0).tolist()
    return means


@pytest.mark.parametrize("case", CASES)
def test_an_interval_covers_the_truth(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert min(coverage(case, 150, monkeypatch)) > 0.9


def test_pairs_that_share_seeds_would_not_cover_as_independent_ones() -> None:
    """Why pairs of one seed do not count as replicates where the seed acts alike in all of them."""
    rng, covered = np.random.default_rng(12), 0
    for _ in range(200):
        one = levels(rng, "seeds act alike")[0]
        covered += abs(one.apart_NP.mean()) <= 2.776 * np.sqrt(one.by_pair)
    assert covered / 200 < 0.9
