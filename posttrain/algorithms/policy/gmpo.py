"""GMPO: the geometric mean of a sequence's ratios, each clipped in log space before the mean."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from posttrain.algorithms.objective import AlgorithmRow
from posttrain.algorithms.surrogate import Surrogate, Tokens
from posttrain.formulas.ragged import mean_rows, repeat_to_tokens
from posttrain.settings.choices import Options


class GmpoOptions(Options):
    """The bound of each token's log ratio."""

    edge: float = Field(
        0.4, gt=0, description="log ratios are clipped: at most edge for A > 0, at least -edge for A < 0"
    )


def gmpo(tokens: Tokens, options: GmpoOptions) -> Tensor:
    """exp(mean_t min(log r, edge)) A, or exp(mean_t max(log r, -edge)) A where A < 0 (Zhao 2025)."""
    clamped_N = torch.where(
        tokens.advantage < 0, tokens.log_ratio.clamp(min=-options.edge), tokens.log_ratio.clamp(max=options.edge)
    )
    mean_B = mean_rows(clamped_N, tokens.lengths)
    return repeat_to_tokens(mean_B, tokens.lengths, clamped_N.numel()).exp() * tokens.advantage


def clipped(tokens: Tokens, options: GmpoOptions) -> Tensor:
    """Tell whether a token's log ratio is clamped, without gradient."""
    above, below = tokens.log_ratio > options.edge, tokens.log_ratio < -options.edge
    return (above & (tokens.advantage > 0)) | (below & (tokens.advantage < 0))


SURROGATES = {
    "gmpo": Surrogate(
        GmpoOptions,
        gmpo,
        "exp(mean_t min(log r, edge)) A; max(log r, -edge) where A < 0",
        clipped=clipped,
        needs_sequence=True,
        per_sequence=True,
    )
}
ROWS = {
    "gmpo": AlgorithmRow(
        "Zhao 2025, arXiv:2507.20673",
        "-mean_i exp(mean_t min(log r, 0.4)) A, max(log r, -0.4) where A < 0",
        {"surrogate": "gmpo"},
    ),
}
