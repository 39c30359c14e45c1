"""The next token of each row: the likeliest, or one drawn by the row's own random number (formulas/random.py)."""

from __future__ import annotations

import torch
from torch import Tensor


def sample_next(logits: Tensor, draw_R: Tensor | None, top_p: float, top_k: int | None) -> tuple[Tensor, Tensor]:
    """The token of each row and its log-prob, which is the model's also where the draw is from fewer tokens."""
    p = logits.softmax(1)
    top, most = logits.amax(1), p.amax(1)
    if draw_R is None:
        token_R = logits.argmax(1)
    else:
        everything = top_p == 1 and top_k is None
        cdf = (p if everything else top_k_top_p_mask(p, top_p, top_k)).cumsum(1, dtype=torch.float64)
        point = draw_R[:, None] * cdf[:, -1:]
        token_R = torch.searchsorted(cdf, point, right=True).squeeze(1).clamp(max=cdf.shape[1] - 1)
    return token_R, logits.gather(1, token_R[:, None]).squeeze(1) - (top - most.log())


def top_k_top_p_mask(p: Tensor, top_p: float, top_k: int | None) -> Tensor:
    """p with 0 for all but the likeliest tokens: the top_k, and of these the fewest that hold top_p of their mass.

    Tokens as likely as the last that is kept are kept as well, so that the order of the vocabulary decides nothing.
    """
    best = p.topk(min(top_k or p.shape[1], p.shape[1]), dim=1).values.double()
    before = best.cumsum(1) - best
    spare = before >= top_p * best.sum(1, keepdim=True)
    spare[:, 0] = False
    least = best.masked_fill(spare, torch.inf).amin(1, keepdim=True)
    return p.masked_fill(p < least, 0)


def mixture_logits(policy_RV: Tensor, other_RV: Tensor, share: float) -> Tensor:
    """(1 - share) log pi + share log pi_other, the mixture that Nash-MD samples from (Munos 2023)."""
    return (1 - share) * policy_RV.log_softmax(-1) + share * other_RV.log_softmax(-1)
