"""Estimators of KL(policy || reference) from tokens that the policy sampled (Schulman 2020)."""

from __future__ import annotations

from torch import Tensor

OVERFLOW = 80.0
"""exp of more is soon infinite in single precision; a token that far out is charged as much, without gradient."""


def k1(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """logp - ref_logp: unbiased, high variance, negative at times; its gradient has expectation 0."""
    return logp - ref_logp


def k2(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """(logp - ref_logp)^2 / 2: biased value, and its gradient is that of the true KL in expectation."""
    return (logp - ref_logp).square() / 2


def k3(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """exp(ref_logp - logp) - (ref_logp - logp) - 1: unbiased and never negative."""
    difference = (ref_logp - logp).clamp(max=OVERFLOW)
    return difference.expm1() - difference


def forward_k3(logp: Tensor, old_logp: Tensor) -> Tensor:
    """r - 1 - log r, r = exp(logp - old_logp): KL(old || policy) from tokens that the old policy sampled."""
    return k3(old_logp, logp)


ESTIMATORS = {"k1": k1, "k2": k2, "k3": k3}
