"""The formulas of policy losses: importance ratios, KL estimators, and the critic's loss."""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.formulas.ragged import mean_rows, repeat_to_tokens, sum_rows

CAP = 20.0
"""Bound of |log ratio|, so that exp stays finite even if the policy diverged. A token beyond it has no gradient."""


def token_log_ratio(logp_N: Tensor, old_logp_N: Tensor, lengths_B: Tensor) -> Tensor:
    """logp - old_logp of each token."""
    del lengths_B
    return (logp_N - old_logp_N).clamp(-CAP, CAP)


def sequence_log_ratio(logp_N: Tensor, old_logp_N: Tensor, lengths_B: Tensor) -> Tensor:
    """mean_t(logp - old_logp), the length-normalised sequence ratio, on each token (GSPO, Zheng 2025)."""
    mean_B = mean_rows(logp_N - old_logp_N, lengths_B)
    return repeat_to_tokens(mean_B, lengths_B, logp_N.numel()).clamp(-CAP, CAP)


def product_log_ratio(logp_N: Tensor, old_logp_N: Tensor, lengths_B: Tensor) -> Tensor:
    """sum_t(logp - old_logp), the log of a sequence's probability ratio, on each token."""
    sum_B = sum_rows(logp_N - old_logp_N, lengths_B)
    return repeat_to_tokens(sum_B, lengths_B, logp_N.numel()).clamp(-CAP, CAP)


def inside(ratio: Tensor, low: float | None, high: float) -> Tensor:
    """Tell whether low <= r <= high."""
    return (ratio <= high) & (ratio >= (low or 0.0))


OVERFLOW = 80.0
"""exp of more soon overflows in single precision. A token beyond it counts as this much, without gradient."""


def k1(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """logp - ref_logp: unbiased, high variance, can be negative; its gradient has expectation 0."""
    return logp - ref_logp


def k2(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """(logp - ref_logp)^2 / 2: biased, but its gradient is the true KL's gradient in expectation."""
    return (logp - ref_logp).square() / 2


def k3(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """exp(ref_logp - logp) - (ref_logp - logp) - 1: unbiased and never negative."""
    difference = (ref_logp - logp).clamp(max=OVERFLOW)
    return difference.expm1() - difference


def forward_k3(logp: Tensor, old_logp: Tensor) -> Tensor:
    """r - 1 - log r, r = exp(logp - old_logp): KL(old || policy) from tokens that the old policy sampled."""
    return k3(old_logp, logp)


ESTIMATORS = {"k1": k1, "k2": k2, "k3": k3}


def clipped_value(value: Tensor, old_value: Tensor, returns: Tensor, clip: float | None) -> Tensor:
    """0.5 max((V - R)^2, (clip(V, V_old - c, V_old + c) - R)^2) (PPO's value loss); no clip when c is None."""
    loss = (value - returns).square()
    if clip is not None:
        near = old_value + (value - old_value).clamp(-clip, clip)
        loss = torch.maximum(loss, (near - returns).square())
    return 0.5 * loss
