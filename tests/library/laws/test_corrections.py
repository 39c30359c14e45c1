"""Weights for a sampler with other log-probs than the trainer, by hand, and what they leave of a gradient."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from posttrain.algorithms.corrections import CORRECTION, LEVELS, correction_weights
from posttrain.algorithms.policy_config import POLICY_ROWS, PolicyConfig
from posttrain.algorithms.policy_objective import PolicyObjective
from posttrain.formulas.ragged import Ragged
from posttrain.laws.cases import Case, Shape, build, run

SHAPE = Shape(seed=5)
TYPES = [name for name in CORRECTION.table if name != "none"]


def weights(**correction: Any) -> Tensor:
    """Two sequences with the token ratios 1, 4 and 1/4, 1/4, 2."""
    ratios = torch.tensor([1.0, 4.0, 0.25, 0.25, 2.0], dtype=torch.float64)
    old = torch.full((5,), -3.0, dtype=torch.float64)
    step = Ragged(torch.tensor([2, 3]), {}, {"old_logp": old, "recomputed_logp": old + ratios.log()})
    return correction_weights(step, PolicyConfig.model_validate({"correction": correction}).correction)


@pytest.mark.parametrize(
    ("correction", "expected"),
    [
        ({"type": "truncate"}, [1, 2, 0.25, 0.25, 2]),
        ({"type": "truncate", "low": 0.5, "high": 3.0}, [1, 3, 0.5, 0.5, 2]),
        ({"type": "mask", "low": 0.5, "high": 3.0}, [1, 0, 0, 0, 2]),
        ({"type": "mask", "low": None, "high": 3.0}, [1, 0, 0.25, 0.25, 2]),
        ({"type": "reject", "low": 0.5, "high": 3.0}, [1, 0, 0, 0, 1]),
        ({"type": "truncate", "level": "sequence"}, [2, 2, 0.125, 0.125, 0.125]),
        ({"type": "mask", "level": "sequence", "low": None, "high": 3.0}, [0, 0, 0.125, 0.125, 0.125]),
        ({"type": "mask", "level": "geometric", "low": 0.6}, [2, 2, 0, 0, 0]),
        ({"type": "reject", "level": "geometric", "low": 0.6}, [1, 1, 0, 0, 0]),
    ],
)
def test_weights_by_hand(correction: dict[str, Any], expected: list[float]) -> None:
    assert_close(weights(**correction), torch.tensor(expected, dtype=torch.float64))


def case_of(correction: Any, row: str = "grpo") -> Case:
    return build(PolicyObjective(POLICY_ROWS[row].settings(correction=correction, kl="none"), 9), SHAPE)


@pytest.mark.parametrize("level", list(LEVELS))
@pytest.mark.parametrize("kind", TYPES)
def test_where_sampler_and_trainer_agree_every_correction_is_none(kind: str, level: str) -> None:
    plain = case_of("none").cast(torch.float32)
    case = case_of({"type": kind, "level": level}).cast(torch.float32)
    same = {**plain.step.tokens, "recomputed_logp": plain.step.tokens["old_logp"]}
    ours, theirs = run(replace(case, step=replace(case.step, tokens=same))), run(plain)
    assert torch.equal(ours.loss, theirs.loss)
    assert torch.equal(ours.gradients["logp"], theirs.gradients["logp"]), "it would change runs that need no correction"
    assert ours.metrics["correction_ess"] == pytest.approx(1)


def test_a_masked_token_has_no_gradient_and_stays_in_the_denominator() -> None:
    case = case_of({"type": "mask", "low": 0.9, "high": 1.1}, "reinforce_pp")
    prepared = case.objective.prepare(case.step, dict(case.state)).step
    masked_N = (prepared.tokens["correction"] == 0) & (prepared.tokens["weight"] > 0)
    assert 0 < int(masked_N.sum()) < len(masked_N)
    gradient = torch.empty_like(prepared.tokens["weight"])
    gradient[prepared.tokens["token"]] = run(case).gradients["logp"]
    assert float(gradient[masked_N].abs().max()) == 0
    plain = case_of("none", "reinforce_pp")
    unmasked = plain.objective.prepare(plain.step, dict(plain.state)).step
    assert_close(prepared.tokens["weight"], unmasked.tokens["weight"])


def test_the_effective_sample_size_is_that_of_the_weights() -> None:
    case = case_of({"type": "mask", "low": 0.9, "high": 1.1}, "dapo")
    prepared = case.objective.prepare(case.step, dict(case.state)).step
    used = prepared.tokens["correction"][prepared.tokens["weight"] > 0]
    expected = float(used.sum() ** 2 / (len(used) * used.square().sum()))
    outcome = run(case, lambda step: [step.select(torch.tensor([row])) for row in range(len(step))])
    assert outcome.metrics["correction_ess"] == pytest.approx(expected)
    assert outcome.metrics["correction_ess"] < outcome.metrics["ratio_ess"] < 1


def test_the_extremes_of_the_ratio_and_both_sides_of_the_clip_by_hand() -> None:
    case = build(PolicyObjective(POLICY_ROWS["dapo"].settings(), 9), Shape(seed=2))
    outcome = run(case, lambda step: [step.select(torch.tensor([row])) for row in range(len(step))])
    prepared = case.objective.prepare(case.step, dict(case.state)).step
    token, advantage = prepared.tokens["token"], prepared.tokens["advantage"]
    ratio = (case.leaves["logp"][token] - prepared.tokens["old_logp"]).exp()
    assert outcome.metrics["ratio_max"] == pytest.approx(float(ratio.max()))
    assert outcome.metrics["ratio_min"] == pytest.approx(float(ratio.min()))
    low, high = ((ratio < 0.8) & (advantage < 0)).double().mean(), ((ratio > 1.28) & (advantage > 0)).double().mean()
    assert outcome.metrics["clip_low"] == pytest.approx(float(low)) and low > 0
    assert outcome.metrics["clip_high"] == pytest.approx(float(high)) and high > 0
    assert outcome.metrics["clip_fraction"] == pytest.approx(float(low + high))
    assert math.isfinite(outcome.metrics["ratio_ess"])
