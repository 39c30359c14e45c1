"""The formulas of policy losses by hand: ratios, KL estimators and the critic's loss."""

from __future__ import annotations

import math

import torch
from torch.testing import assert_close

from posttrain.formulas.policy import (
    clipped_value,
    forward_k3,
    inside,
    k1,
    k2,
    k3,
    product_log_ratio,
    sequence_log_ratio,
    token_log_ratio,
)
from tests.library.by_hand import t


def test_ratios_by_hand() -> None:
    logp, old, lengths = t(-1, -2, -3), t(-1.5, -1, -3), torch.tensor([2, 1])
    assert_close(token_log_ratio(logp, old, lengths), t(0.5, -1, 0))
    assert_close(sequence_log_ratio(logp, old, lengths), t(-0.25, -0.25, 0))
    assert_close(product_log_ratio(logp, old, lengths), t(-0.5, -0.5, 0))


def test_inside_includes_its_edges() -> None:
    assert inside(t(0.4, 0.5, 2, 2.1), 0.5, 2).tolist() == [False, True, True, False]
    assert inside(t(0.4, 0.5, 2, 2.1), None, 2).tolist() == [True, True, True, False]


def test_kl_estimators_by_hand() -> None:
    logp, ref = t(-1, -2), t(-2, -1)
    assert_close(k1(logp, ref), t(1, -1))
    assert_close(k2(logp, ref), t(0.5, 0.5))
    assert_close(k3(logp, ref), t(math.exp(-1), math.e - 2))
    assert_close(forward_k3(logp, ref), t(math.e - 2, math.exp(-1)))


def test_k3_stays_finite_in_single_precision() -> None:
    assert bool(k3(torch.tensor([-500.0]), torch.tensor([0.0])).isfinite().all())


def test_the_critics_loss_by_hand() -> None:
    # V 2, old 1, clip 0.5: near 1.5. R 3: (1, 2.25) -> 2.25; R 0: (4, 2.25) -> 4. Half of it.
    assert_close(clipped_value(t(2, 2), t(1, 1), t(3, 0), 0.5), t(1.125, 2))
    assert_close(clipped_value(t(2, 2), t(1, 1), t(3, 0), None), t(0.5, 2))


def test_a_policy_that_ran_away_has_a_finite_ratio() -> None:
    far, lengths = torch.tensor([-500.0, 0.0]), torch.tensor([1, 1])
    for rule in (token_log_ratio, sequence_log_ratio, product_log_ratio):
        assert bool(rule(far, far.flip(0), lengths).exp().isfinite().all())
