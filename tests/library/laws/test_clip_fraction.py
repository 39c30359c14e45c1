"""The metric `clip_fraction` against the gradient: the share of the step's tokens that the clip leaves without one."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest
import torch

from posttrain.algorithms.policy_config import POLICY_ROWS
from posttrain.algorithms.policy_objective import PolicyObjective
from posttrain.laws.cases import LONGEST, OFF, Shape, build, run, without_extra_terms

KEEP_THEIR_GRADIENT: Final = {"cispo", "p3o"}
"""A weight that is clipped keeps its gradient, and a sequence of P3O loses a part of it."""
SETTINGS: Final = {
    "top_entropy": {"surrogate": {"share": 1.0}},
    "clip_cov": {"surrogate": {"cov_low": 1e6, "cov_high": 1e7}},
    "pass_at_k": {"advantage": {"k": 2, "threshold": 0.8}},
}
"""Settings of rows that else take the gradient of tokens for other reasons than the clip, or give no advantage here."""


def clipping(name: str) -> PolicyObjective:
    """Return a row with nothing but its surrogate."""
    objective = PolicyObjective(POLICY_ROWS[name].settings(**SETTINGS.get(name, {})), LONGEST)
    return without_extra_terms(objective, penalty=OFF)


def surrogate_of(name: str) -> str:
    return str(POLICY_ROWS[name].settings().surrogate.type)


CLIPPED: Final = [
    name
    for name in POLICY_ROWS
    if clipping(name).surrogate.clipped is not None and surrogate_of(name) not in KEEP_THEIR_GRADIENT
]


def fractions(objective: PolicyObjective, shape: Shape) -> tuple[float, float]:
    """Return the metric, and the share of the step's tokens without gradient although they have an advantage."""
    outcome = run(build(objective, shape))
    tokens = outcome.prepared.tokens
    lost_N = (outcome.gradients["logp"][tokens["token"]] == 0) & (tokens["advantage"] != 0) & (tokens["weight"] != 0)
    return outcome.metrics["clip_fraction"], float(tokens["token_mean_weight"][lost_N].sum())


SHAPES: Final = [Shape(seed, 1 + seed % 4, 2 + seed % 3, 1 + seed % 7, bool(seed % 2)) for seed in range(24)]


@pytest.mark.parametrize("name", CLIPPED)
def test_clip_fraction_is_the_share_of_tokens_without_gradient(name: str) -> None:
    found = [fractions(clipping(name), shape) for shape in SHAPES]
    assert [metric for metric, _ in found] == pytest.approx([share for _, share in found], abs=1e-12)
    assert any(metric > 0 for metric, _ in found), "some token was clipped"


def test_every_row_of_a_clip_by_ratio_is_among_them() -> None:
    assert {"grpo", "dapo", "ppo", "gspo", "dual_clip", "top_entropy", "clip_cov", "gmpo", "dppo_tv"} <= {*CLIPPED}
    assert set(POLICY_ROWS) - {*CLIPPED} >= KEEP_THEIR_GRADIENT


def test_a_metric_that_forgets_the_advantages_sign_is_found() -> None:
    objective = clipping("grpo")
    both = replace(objective.surrogate, clipped=lambda tokens, _: (tokens.ratio - 1).abs() > 0.2)

    class Wrong(PolicyObjective):
        @property
        def surrogate(self):  # type: ignore[no-untyped-def]
            return both

    found = [fractions(Wrong(objective.config, LONGEST), shape) for shape in SHAPES]
    assert any(metric > share + 0.01 for metric, share in found)
    assert torch.tensor(found).isfinite().all()
