"""ORPO: the likelihood of the chosen answer, and the odds ratio of the two answers."""

from __future__ import annotations

import math

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import logsigmoid

from posttrain.algorithms.objective import AlgorithmRow
from posttrain.algorithms.preference_loss import PairLoss
from posttrain.settings.choices import Options

LOG_HALF = -math.log(2.0)
NEAR_ZERO = -1e-6
"""A mean log-prob above this is treated as this, because the odds of a certain answer are infinite."""


class OrpoOptions(Options):
    """The weight of the odds term."""

    beta: float = Field(0.1, gt=0, description="weight of the odds ratio term (lambda in the paper)")


def orpo(h: Tensor, l: Tensor, beta: float) -> Tensor:
    """beta * -logsigmoid(logodds(h) - logodds(l)) on mean log-probs (Hong 2024; beta is the paper's lambda)."""
    return -beta * logsigmoid(log_odds(h) - log_odds(l))


def log_odds(m: Tensor) -> Tensor:
    """log(p / (1 - p)) = m - log(1 - exp(m)) of m = log p < 0, exact near 0 and far below it."""
    m = m.clamp(max=NEAR_ZERO)
    near = m > LOG_HALF
    # Each branch gets a harmless argument where it is not used, or its infinite gradient times 0 would be nan.
    close = torch.log(-torch.expm1(m.where(near, m.new_full((), LOG_HALF))))
    far = torch.log1p(-torch.exp(m.where(~near, m.new_full((), LOG_HALF))))
    return m - close.where(near, far)


LOSSES = {
    "orpo": PairLoss(OrpoOptions, lambda h, low, k: orpo(h, low, k.beta), "-beta logsigmoid(logodds(h) - logodds(l))"),
}
ROWS = {
    "orpo": AlgorithmRow(
        "Hong 2024, arXiv:2403.07691",
        "NLL(chosen) + lambda * -logsigmoid(logodds_c - logodds_r), logodds = m - log1mexp(m), m the mean logp",
        {"loss": "orpo", "reference": False, "reduce": "mean", "nll": 1.0},
    ),
}
