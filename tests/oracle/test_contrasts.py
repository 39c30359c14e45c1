"""Planned contrasts, Holm's correction and the importance of settings against scipy and statsmodels.

`make oracle` installs these into .oracles only.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from posttrain.pipeline.compare.importance import explained
from posttrain.pipeline.compare.replicates import Contrast, Replicates, replicates
from posttrain.pipeline.compare.statistics import ALPHA, Difference, Floats, difference, findings

stats = pytest.importorskip("scipy.stats", reason="scipy is not installed: see `make oracle`")
pandas = pytest.importorskip("pandas", reason="pandas is not installed: see `make oracle`")
formula = pytest.importorskip("statsmodels.formula.api", reason="statsmodels is not installed: see `make oracle`")
multitest = pytest.importorskip("statsmodels.stats.multitest")
anova = pytest.importorskip("statsmodels.stats.anova")
pytestmark = pytest.mark.oracle

PROMPTS = 3


def contrast(values_N: Floats, contexts: list[str], seeds: list[str]) -> Contrast:
    """Pairs whose difference is the same on all prompts, so that seeds are all that varies."""
    return Contrast(np.repeat(values_N[:, None], PROMPTS, axis=1), contexts, seeds)


@pytest.mark.parametrize("missing", [[], [0], [1, 6]])
def test_pairs_as_replicates_are_the_regression_of_statsmodels(missing: list[int]) -> None:
    """The mean over equal combinations is the intercept of an effect-coded regression on the combination."""
    rng = np.random.default_rng(3)
    cells = [cell for nth, cell in enumerate(product("abc", "1234")) if nth not in missing]
    values_N = rng.normal(0.1, 0.05, len(cells))
    table = pandas.DataFrame({"d": values_N, "c": [context for context, _ in cells]})
    fit = formula.ols("d ~ C(c, Sum)", table).fit()
    found = contrast(values_N, [context for context, _ in cells], [seed for _, seed in cells])
    measured = Replicates("pairs").difference(found)
    low, high = fit.conf_int(ALPHA).loc["Intercept"]
    assert found.freedom == fit.df_resid and found.by_pair == pytest.approx(fit.bse["Intercept"] ** 2)
    assert measured.mean == pytest.approx(fit.params["Intercept"])
    assert measured.half(ALPHA) == pytest.approx((high - low) / 2, rel=0.03)
    assert measured.p_value == pytest.approx(fit.pvalues["Intercept"], rel=0.1, abs=1e-3)


def test_seeds_as_replicates_are_the_paired_t_test_of_the_seeds_means() -> None:
    rng = np.random.default_rng(4)
    values_CS = rng.normal(0, 0.01, (2, 5)) + rng.normal(0.05, 0.05, (1, 5))
    cells = list(product("ab", "12345"))
    found = contrast(values_CS.ravel(), [context for context, _ in cells], [seed for _, seed in cells])
    repeated = replicates([found])
    theirs = stats.ttest_1samp(values_CS.mean(axis=0), 0)
    interval = theirs.confidence_interval(1 - ALPHA)
    measured = repeated.difference(found)
    assert repeated.kind == "seeds" and found.by_seed == pytest.approx(stats.sem(values_CS.mean(axis=0)) ** 2)
    assert measured.half(ALPHA) == pytest.approx((interval.high - interval.low) / 2, rel=0.03)
    assert measured.p_value == pytest.approx(theirs.pvalue, rel=0.1, abs=5e-4)


def test_levels_that_share_seeds_are_the_repeated_measures_of_statsmodels() -> None:
    """The pooled variance of a contrast is 2 / S times the residual mean square of level + seed."""
    rng = np.random.default_rng(5)
    score_LS = rng.normal(0, 0.02, (4, 3)) + rng.normal(0, 0.05, (1, 3))
    seeds = list("123")
    pairs = [contrast(score_LS[j] - score_LS[i], ["one"] * 3, seeds) for i in range(4) for j in range(i + 1, 4)]
    found = replicates(pairs)
    rows = [(score_LS[level, seed], str(level), str(seed)) for level in range(4) for seed in range(3)]
    table = pandas.DataFrame(rows, columns=["y", "level", "seed"])
    fit = formula.ols("y ~ C(level) + C(seed)", table).fit()
    assert found.levels == 4 and found.of_one_seed == pytest.approx(2 * fit.mse_resid)
    assert fit.df_resid == (4 - 1) * (3 - 1)


def test_a_setting_against_another_is_welchs_test() -> None:
    rng = np.random.default_rng(6)
    left, right = rng.normal(0.5, 0.02, 4), rng.normal(0.4, 0.06, 6)
    theirs = stats.ttest_ind(left, right, equal_var=False)
    interval = theirs.confidence_interval(1 - ALPHA)
    sides = [np.repeat(side[:, None], PROMPTS, axis=1) for side in (left, right)]
    measured = difference(*sides)
    assert measured.mean == pytest.approx((interval.high + interval.low) / 2)
    assert measured.half(ALPHA) == pytest.approx((interval.high - interval.low) / 2, rel=0.03)


def test_prompts_of_one_training_are_the_paired_test_and_the_permutations_of_scipy() -> None:
    """400 prompts: the bootstrap, the paired t test and exact sign flips agree."""
    rng = np.random.default_rng(7)
    apart = rng.normal(0.02, 0.3, 400)
    measured = difference(apart[None] + 0.5, np.full((1, 400), 0.5))
    theirs = stats.ttest_1samp(apart, 0)
    flips = stats.permutation_test(
        (apart,), np.mean, permutation_type="samples", n_resamples=9999, rng=np.random.default_rng(1)
    )
    assert measured.half(ALPHA) == pytest.approx(np.diff(theirs.confidence_interval(1 - ALPHA))[0] / 2, rel=0.03)
    assert measured.p_value == pytest.approx(theirs.pvalue, rel=0.08) == pytest.approx(flips.pvalue, rel=0.15)


def test_holms_correction_is_that_of_statsmodels() -> None:
    rng = np.random.default_rng(8)
    for _ in range(20):
        errors = np.sort(np.abs(rng.normal(0, 1, 4000)))
        raw = [Difference(float(gap), errors, over_seeds=True) for gap in rng.normal(0, 2.5, 7)]
        told, corrected, _, _ = multitest.multipletests([one.p_value for one in raw], ALPHA, method="holm")
        ours = findings(raw)
        assert [one.p_value for one in ours] == pytest.approx(corrected.tolist())
        close = [abs(value - ALPHA) < 0.003 for value in corrected]
        pairs = zip(ours, told, close, strict=True)
        assert all(one.significant == yes or near for one, yes, near in pairs)


@pytest.mark.parametrize("missing", [0, 5])
def test_importance_is_epsilon_squared_of_the_analysis_of_variance(missing: int) -> None:
    rng = np.random.default_rng(9)
    design = np.array(list(product(range(4), range(2), range(3))))[missing:]
    score_N = rng.normal(0, 0.02, len(design)) + 0.03 * design[:, 0] - 0.02 * design[:, 1]
    table = pandas.DataFrame({"y": score_N, "a": design[:, 0], "k": design[:, 1]})
    theirs = anova.anova_lm(formula.ols("y ~ C(a) + C(k)", table).fit(), typ=2)
    error = theirs.loc["Residual", "sum_sq"] / theirs.loc["Residual", "df"]
    total = ((score_N - score_N.mean()) ** 2).sum()
    for name, (share, p, why) in zip(("C(a)", "C(k)"), explained(score_N, [design[:, 0], design[:, 1]]), strict=True):
        assert not why and share == pytest.approx((theirs.loc[name, "sum_sq"] - theirs.loc[name, "df"] * error) / total)
        assert p == pytest.approx(theirs.loc[name, "PR(>F)"], abs=0.02)
