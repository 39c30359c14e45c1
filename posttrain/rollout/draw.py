"""What samples are drawn from and by: the mixture of two policies, and random numbers that belong to a row."""

from __future__ import annotations

from torch import Tensor

from posttrain.formulas.random import row_keys, uniform

__all__ = ["mixture_logits", "row_keys", "uniform"]


def mixture_logits(policy_RV: Tensor, other_RV: Tensor, share: float) -> Tensor:
    """(1 - share) log pi + share log pi_other, the mixture that Nash-MD samples from (Munos 2023)."""
    return (1 - share) * policy_RV.log_softmax(-1) + share * other_RV.log_softmax(-1)
