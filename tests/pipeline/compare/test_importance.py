"""Which setting mattered: noise does not, what differs by a setting does, and what cannot be told says why."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from posttrain.pipeline.compare.evaluated import EvaluatedPolicy
from posttrain.pipeline.compare.importance import Importance, explained, importance
from posttrain.pipeline.compare.planned import planned
from tests.pipeline.compare.trained import study, trained


def test_the_settings_of_a_study_in_order_of_what_they_explain() -> None:
    algorithm, kl = importance(study())
    assert (algorithm.factor, algorithm.levels, kl.levels) == ("online.runs.grpo.algorithm", 3, 2)
    # by hand: the variance of (0, 0, 0.1) is 0.0022, that of (0, -0.05) is 0.000625
    assert algorithm.share == pytest.approx(0.78, abs=0.04) and kl.share == pytest.approx(0.22, abs=0.04)
    assert algorithm.verdict == kl.verdict == "it mattered"


def test_noise_is_rarely_important_and_has_a_share_of_0_on_average() -> None:
    """Four algorithms, two KLs, three seeds, and scores that are luck alone: p is below 0.05 in 5 of 100 studies."""
    rng = np.random.default_rng(3)
    design = np.array(list(product(range(4), range(2), range(3))))
    found = [explained(rng.normal(0, 1, 24), [design[:, 0], design[:, 1]], seed) for seed in range(60)]
    told = [share[1] is not None and share[1] <= 0.05 for study in found for share in study]
    assert np.mean(told) < 0.12
    raw = [eta(rng.normal(0, 1, 24), design[:, 0]) for _ in range(200)]
    assert np.mean(raw) == pytest.approx(3 / 23, abs=0.02), "without the correction noise would explain 13 %"
    assert np.mean([study[0][0] or 0.0 for study in found]) < 0.06


def eta(score_N: np.ndarray, code_N: np.ndarray) -> float:
    means = np.array([score_N[code_N == code].mean() for code in code_N])
    return float(((means - score_N.mean()) ** 2).sum() / ((score_N - score_N.mean()) ** 2).sum())


def test_a_small_effect_next_to_a_large_one_is_found() -> None:
    """The variance of the other setting is not counted as noise."""
    rng = np.random.default_rng(4)
    design = np.array(list(product(range(4), range(2), range(3))))
    score_N = 1.0 * design[:, 0] + 0.05 * design[:, 1] + rng.normal(0, 0.02, 24)
    (large, _, _), (small, p, _) = explained(score_N, [design[:, 0], design[:, 1]])
    assert large is not None and small is not None and p is not None
    assert large > 0.98 and 0 < small < 0.01 and p < 0.01


def test_settings_that_vary_together_or_in_each_training_cannot_be_told() -> None:
    codes = np.array([0, 0, 1, 1])
    assert explained(np.arange(4.0), [codes, codes])[0] == (None, None, "it varies together with other settings")
    why = "too few trainings for so many settings; run more seeds"
    assert explained(np.arange(4.0), [np.arange(4)])[0] == (None, None, why)
    partly = explained(np.arange(6.0), [np.array([0, 0, 1, 1, 2, 2]), np.array([0, 0, 0, 0, 1, 1])])
    assert partly[0][2] == "it varies in part together with other settings"
    assert explained(np.ones(4), [codes])[0] == (0.0, 1.0, "")
    assert Importance("lr", 2, None, None, "x").verdict == "cannot tell: x"
    assert Importance("lr", 2, 0.1, 0.2).verdict == "cannot tell from noise"


def test_a_number_with_many_levels_counts_in_thirds() -> None:
    many = [trained("grpo", seed=n, gain=0.1 * n, own={"lr": str(n)}) for n in range(9)]
    (row,) = importance(many)
    assert row.levels == 3 and row.share is not None and row.share > 0.7


def test_trainings_of_other_kinds_and_equal_ones_have_none() -> None:
    assert importance([trained("grpo", seed=1), trained("grpo", seed=2)]) == []
    other = trained("dpo", section="preference.runs.dpo", policy="dpo")
    assert importance([*study(), other]) == []


def alike(seeds: int = 3, gain: float = 0.0) -> list[EvaluatedPolicy]:
    """Four algorithms, two KLs: a seed moves a KL's score alike in all algorithms, so its pairs are not replicates."""
    rng = np.random.default_rng(11)
    luck = {(kl, seed): rng.normal(0, 0.05) for kl in ("none", "0.04") for seed in range(seeds)}
    return [
        trained(algorithm, kl, seed, gain * (kl != "none") + luck[kl, seed], luck=0.0)
        for algorithm in ("grpo", "dr_grpo", "cispo", "gspo")
        for kl in ("none", "0.04")
        for seed in range(seeds)
    ]


def test_seeds_that_act_alike_in_all_settings_are_no_evidence() -> None:
    """24 trainings, but three seeds: what the planned question cannot tell, the table cannot tell either."""
    found = alike(gain=0.04)
    (question,) = planned(found, ["kl"]).questions
    assert question.replicates == "seeds" and question.verdict == "cannot tell"
    score_N = np.array([one.scores_P.mean() for one in found])
    codes = [
        np.array([one.settings["online.runs.grpo.algorithm"] for one in found]),
        *[np.array(["kl.beta" in str(one.settings) for one in found])],
    ]
    p_value = explained(score_N, [np.unique(code, return_inverse=True)[1] for code in codes])[1][1]
    assert p_value is not None and p_value < 0.05, "shuffles of the trainings would call it important"
    kl = next(one for one in importance(found) if one.factor.endswith("kl"))
    assert kl.verdict == "cannot tell from noise" and kl.share is not None and kl.share > 0


def test_a_setting_with_planned_questions_has_their_p() -> None:
    found = study()
    asked = planned(found, ["kl", "algorithm"], ["grpo"]).questions
    for row in importance(found, asked):
        ps = [one.finding.p_value for one in asked if one.factor == row.factor and one.finding]
        assert row.p_value == min(ps)


def test_one_seed_cannot_tell() -> None:
    rows = importance(study((1,)))
    assert {row.verdict for row in rows} == {"cannot tell: one seed; run more seeds"} and rows[0].share


def test_without_pairs_the_seeds_of_a_draw_count_once() -> None:
    """A random search: 13 draws of lr with five seeds each are 13 settings, not 65."""
    rng = np.random.default_rng(0)
    draws = [(str(nth), rng.normal(0, 0.05)) for nth in range(13)]
    found = [trained("grpo", seed=n, gain=luck, own={"lr": lr}) for lr, luck in draws for n in range(5)]
    (row,) = importance(found)
    assert row.levels == 3 and row.p_value is not None and row.p_value > 0.05
