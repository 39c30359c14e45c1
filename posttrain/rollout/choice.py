"""The token that each row goes on with: the likeliest, or one drawn at the row's own number."""

from __future__ import annotations

import torch
from torch import Tensor


def choose(logits: Tensor, draw_R: Tensor | None, top_p: float, top_k: int | None) -> tuple[Tensor, Tensor]:
    """The token of each row and its log-prob, which is the model's also where the draw is from fewer tokens."""
    p = logits.softmax(1)
    top, most = logits.amax(1), p.amax(1)
    if draw_R is None:
        token_R = logits.argmax(1)
    else:
        everything = top_p == 1 and top_k is None
        cdf = (p if everything else kept(p, top_p, top_k)).cumsum(1, dtype=torch.float64)
        point = draw_R[:, None] * cdf[:, -1:]
        token_R = torch.searchsorted(cdf, point, right=True).squeeze(1).clamp(max=cdf.shape[1] - 1)
    return token_R, logits.gather(1, token_R[:, None]).squeeze(1) - (top - most.log())


def kept(p: Tensor, top_p: float, top_k: int | None) -> Tensor:
    """p with 0 for all but the likeliest tokens: the top_k, and of these the fewest that hold top_p of their mass.

    Tokens as likely as the last that is kept are kept as well, so that the order of the vocabulary decides nothing.
    """
    best = p.topk(min(top_k or p.shape[1], p.shape[1]), dim=1).values.double()
    before = best.cumsum(1) - best
    spare = before >= top_p * best.sum(1, keepdim=True)
    spare[:, 0] = False
    least = best.masked_fill(spare, torch.inf).amin(1, keepdim=True)
    return p.masked_fill(p < least, 0)
