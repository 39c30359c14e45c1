"""The next token of each row: the likeliest, or one drawn by the row's own random number.

Random numbers belong to a row and a position, not to a moment, so that a sample never depends on its neighbours:

    u = mix(key_row + t * golden) / 2^53

with SplitMix64's finaliser (Steele 2014). There is no state, so there is none to save in a checkpoint.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

_GOLDEN = -7046029254386353131
_FIRST = -4658895280553007687
_SECOND = -7723592293110705685
_LOW_63 = 2**63 - 1


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


def row_keys(seed: int, names: Sequence[str]) -> Tensor:
    """One 64-bit key for each named row [R], the same on every machine."""
    digests = [hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest() for name in names]
    return torch.tensor([int.from_bytes(digest, "little", signed=True) for digest in digests], dtype=torch.long)


def uniform(keys_R: Tensor, count: int, first_R: Tensor | None = None) -> Tensor:
    """A number in [0, 1) for each row at each of `count` positions from the row's first on, which is 0 [R, count]."""
    place_RT = torch.arange(1, count + 1, device=keys_R.device) + (0 if first_R is None else first_R[:, None])
    mixed = _mix(keys_R[:, None] + (place_RT * _GOLDEN & _LOW_63))
    return _shift(mixed, 11).to(torch.float64) * 2.0**-53


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 30)) * _FIRST
    x = (x ^ _shift(x, 27)) * _SECOND
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    """A logical shift to the right; torch's own keeps the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
