"""SAPO: a sigmoid of the ratio instead of a clip, steeper if the advantage is negative."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from posttrain.algorithms.objective import AlgorithmRow
from posttrain.algorithms.surrogate import Surrogate, Tokens
from posttrain.settings.choices import Options


class SapoOptions(Options):
    """How fast a token's gradient fades as its ratio moves away from 1."""

    tau_pos: float = Field(1.0, gt=0, description="temperature for tokens with A > 0")
    tau_neg: float = Field(1.05, gt=0, description="temperature for tokens with A <= 0")


def sapo(tokens: Tokens, options: SapoOptions) -> Tensor:
    """(4 / tau) sigmoid(tau (r - 1)) A: at ratio 1 its slope by the ratio is A (Gao 2025)."""
    pos, neg = (tokens.advantage.new_full((), tau) for tau in (options.tau_pos, options.tau_neg))
    tau = torch.where(tokens.advantage > 0, pos, neg)
    return 4 / tau * torch.sigmoid(tau * (tokens.ratio - 1)) * tokens.advantage


SURROGATES = {"sapo": Surrogate(SapoOptions, sapo, "(4 / tau) sigmoid(tau (r - 1)) A, tau by the sign of A")}
ROWS = {
    "sapo": AlgorithmRow(
        "Gao 2025, arXiv:2511.20347",
        "-mean_i mean_t (4 / tau) sigmoid(tau (r - 1)) A, tau 1 where A > 0, else 1.05",
        {"surrogate": "sapo"},
    ),
}
