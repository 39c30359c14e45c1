"""The formulas of reward models: one number per answer, trained on comparisons."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


def bradley_terry(chosen: Tensor, rejected: Tensor, margin: Tensor | float = 0.0) -> Tensor:
    """-logsigmoid(s_c - s_r - margin) (Bradley and Terry 1952; margin: Llama 2)."""
    return -logsigmoid(chosen - rejected - margin)


def comparisons(rank_B: Tensor, item_B: Tensor) -> tuple[Tensor, Tensor]:
    """Return every (winner, loser) among the rows of an item, as row indices.

    The lower rank wins; ties are left out.
    """
    order_B = torch.argsort(item_B, stable=True)
    rank_S, item_S = rank_B[order_B], item_B[order_B]
    met_SS = (item_S[:, None] == item_S[None, :]) & (rank_S[:, None] < rank_S[None, :])
    won, lost = met_SS.nonzero(as_tuple=True)
    return order_B[won], order_B[lost]


def centring(chosen: Tensor, rejected: Tensor) -> Tensor:
    """(s_c + s_r)^2: pulls scores towards 0, which Bradley-Terry leaves free (Eisenstein 2023)."""
    return (chosen + rejected).square()


def demonstration_bias(score_B: Tensor) -> Tensor:
    """-mean(s) over demonstrations: added to the head's bias, demonstrations average 0 (Ouyang 2022)."""
    if score_B.numel() == 0 or not bool(score_B.isfinite().all()):
        raise ValueError("centring needs finite scores of at least one demonstration")
    return -score_B.mean()
