from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.testing import assert_close

from posttrain.algorithms.policy.cispo import CispoOptions, cispo, clipped
from posttrain.algorithms.policy.ppo import outside, ppo_clip
from posttrain.algorithms.surrogate import Tokens
from posttrain.formulas.policy import (
    clipped_value,
    forward_k3,
    k1,
    k2,
    k3,
    product_log_ratio,
    sequence_log_ratio,
    token_log_ratio,
)
from posttrain.formulas.ragged import fixed_length, kept_rows, per_item, sequence_mean, sequence_sum, token_mean


def t(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


RATIO = t(0.5, 0.9, 1.5, 0.5, 1.5)
ADVANTAGE = t(1, 1, 1, -1, -1)


def cispo_tokens(logp: Tensor) -> Tokens:
    return Tokens(logp, logp, RATIO.log(), RATIO, ADVANTAGE, torch.tensor([5]), {})


def test_the_pessimistic_clip_by_hand() -> None:
    assert_close(ppo_clip(RATIO, ADVANTAGE, 0.2, 0.28), t(0.5, 0.9, 1.28, -0.8, -1.5))


def test_what_the_pessimistic_clip_cuts() -> None:
    assert outside(RATIO, ADVANTAGE, 0.2, 0.28).tolist() == [False, False, True, True, False]


def test_the_clip_cuts_exactly_those_gradients() -> None:
    moving = RATIO.clone().requires_grad_()
    ppo_clip(moving, ADVANTAGE, 0.2, 0.28).sum().backward()
    assert moving.grad is not None
    assert (moving.grad == 0).tolist() == outside(RATIO, ADVANTAGE, 0.2, 0.28).tolist()


def test_cispos_weight_by_hand() -> None:
    logp = t(-1, -2, -3, -4, -5).requires_grad_()
    surrogate = cispo(cispo_tokens(logp), CispoOptions(type="cispo", high=0.2))
    assert_close(surrogate, t(-0.5, -1.8, -3.6, 2, 6))
    surrogate.sum().backward()
    assert_close(logp.grad, t(0.5, 0.9, 1.2, -0.5, -1.2))
    assert clipped(cispo_tokens(RATIO), CispoOptions(type="cispo", low=0.2, high=0.2)).tolist() == [
        True,
        False,
        True,
        True,
        True,
    ]
    assert clipped(cispo_tokens(RATIO), CispoOptions(type="cispo", high=0.2)).tolist() == [
        False,
        False,
        True,
        False,
        True,
    ]


def test_ratios_by_hand() -> None:
    logp, old, lengths = t(-1, -2, -3), t(-1.5, -1, -3), torch.tensor([2, 1])
    assert_close(token_log_ratio(logp, old, lengths), t(0.5, -1, 0))
    assert_close(sequence_log_ratio(logp, old, lengths), t(-0.25, -0.25, 0))
    assert_close(product_log_ratio(logp, old, lengths), t(-0.5, -0.5, 0))


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


LENGTHS = torch.tensor([1, 3, 2])
KEPT = t(1, 0, 1)


def test_weights_by_hand() -> None:
    third, half = 1 / 3, 1 / 2
    assert_close(sequence_sum(LENGTHS, KEPT), t(half, 0, 0, 0, half, half))
    assert_close(sequence_mean(LENGTHS, KEPT), t(half, 0, 0, 0, 0.25, 0.25))
    assert_close(token_mean(LENGTHS, KEPT), t(third, 0, 0, 0, third, third))
    assert_close(fixed_length(LENGTHS, KEPT, 10), t(0.05, 0, 0, 0, 0.05, 0.05))
    assert_close(per_item(torch.tensor([4, 4, 9])), t(half, half, half))


def test_a_masked_and_an_empty_row_leave_the_denominator() -> None:
    kept = kept_rows(torch.tensor([2, 0, 3]), torch.tensor([False, False, True]), t(1.0))
    assert kept.tolist() == [1, 0, 0]
    assert kept_rows(torch.tensor([2]), None, torch.zeros(1, dtype=torch.bfloat16)).dtype == torch.float32


def test_a_policy_that_ran_away_has_a_finite_ratio() -> None:
    far, lengths = torch.tensor([-500.0, 0.0]), torch.tensor([1, 1])
    for rule in (token_log_ratio, sequence_log_ratio, product_log_ratio):
        assert bool(rule(far, far.flip(0), lengths).exp().isfinite().all())
