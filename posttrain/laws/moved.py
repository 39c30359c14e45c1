"""How a policy loss answers tokens that have moved: the side of its clip, its weights, and the pull of its KL.

Every row has one token here, so losses of tokens and of sequences agree. `Respond` is the loss under test: advantages
and log ratios of the tokens -> the gradient of the loss by their log-probs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

TOKENS = 12
"""Rows of one token each: they divide into 2, 3, 4 and 6 equal parts."""
Respond = Callable[[Tensor, Tensor], Tensor]

SIGNS = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(TOKENS // 2)
"""Every other token is better than expected."""
DISTANCES = (0.001, 0.0025, 0.006, 0.015, 0.04, 0.1, 0.25, 0.6, 1.5, 2.9)
"""Log ratios: the last is a factor of 18."""
SMALL = 1e-5
"""A log ratio within every clip."""
EVERY = 3
"""The tokens hardly depend on a case's shape, so the clip and the weights are tested on every third one."""
SLOPE = 1e-3
"""The smallest relative change that counts as one."""
PARALLEL = 1e-6


def clip_side(respond: Respond) -> float:
    """Return inf where a token that moved against its advantage is pushed on, or loses its gradient first.

    A clip stops tokens that have moved as their advantage asked. One that moved the other way must be able to return.
    """
    counted = _push(respond, 0.0) != 0
    returning = {distance: _push(respond, -distance) for distance in DISTANCES}
    if any(bool((push < 0).any()) for push in returning.values()):
        return math.inf
    for of_sign in (counted & (SIGNS > 0), counted & (SIGNS < 0)):
        stuck = next((distance for distance, push in returning.items() if _lost(push, of_sign)), None)
        near = [distance for distance in DISTANCES if stuck is not None and distance < stuck]
        if stuck is not None and not any(_lost(_push(respond, distance), of_sign) for distance in near):
            return math.inf
    return 0.0


def _push(respond: Respond, moved: float) -> Tensor:
    """Return how far each token is pushed towards its advantage, after it has moved so far towards it; 0: no gradient.

    What the loss does without an advantage (a penalty for moving) is subtracted.
    """
    moved_N = moved * SIGNS
    return -SIGNS * (respond(SIGNS, moved_N) - respond(0 * SIGNS, moved_N))


def _lost(push: Tensor, of_sign: Tensor) -> bool:
    """Return whether no token of one sign has a gradient."""
    return bool(of_sign.any()) and not bool(push[of_sign].any())


def importance(respond: Respond) -> float:
    """Return inf where the weight falls as policy / sampler rises or rises faster, or its cap holds only below 1.

    A token's weight is the policy's probability over the sampler's, or less; not the inverse, and not the square.
    """
    slopes = []
    for sign in (1.0, -1.0):
        here, low, high = (_weight(respond, sign, log_ratio) for log_ratio in (0.0, -SMALL, SMALL))
        slopes.append((high - low) / (2 * SMALL) / (here or 1.0))
        flat = here > 0 and abs(slopes[-1]) < SLOPE
        flat = flat and all(abs(_weight(respond, sign, below) / here - 1) < SLOPE for below in (-0.05, -0.5))
        if flat and _weight(respond, sign, 2.0) > (1 + SLOPE) * here:
            return math.inf
    return math.inf if max(slopes) < -SLOPE or min(slopes) > 1 + SLOPE else 0.0


def _weight(respond: Respond, sign: float, log_ratio: float) -> float:
    """Return the sum of the tokens' pushes towards an advantage of this sign, at one log ratio."""
    advantage, moved = sign * torch.ones_like(SIGNS), torch.full_like(SIGNS, log_ratio)
    return float(((respond(0 * advantage, moved) - respond(advantage, moved)) * advantage).sum())


class Exact(NamedTuple):
    """A policy over four tokens whose samples are in exact proportion, and another distribution."""

    token_N: Tensor
    """The sampled token of each of the 12 rows."""
    policy_V: Tensor
    other_V: Tensor

    def logp(self) -> Tensor:
        """Return the log-prob of each row's token under the policy."""
        return self.policy_V.log()[self.token_N]

    def other_logp(self) -> Tensor:
        """Return the same under the other distribution."""
        return self.other_V.log()[self.token_N]

    def by_logits(self, gradient_N: Tensor) -> Tensor:
        """Return the gradient by the policy's logits, from that by the rows' log-probs."""
        onehot_NV = torch.nn.functional.one_hot(self.token_N, 4).to(gradient_N.dtype)
        return (gradient_N[:, None] * (onehot_NV - self.policy_V)).sum(0)


def exact(seed: int) -> Exact:
    """Return a policy and another distribution over four tokens, in an order that the seed says."""
    order = torch.randperm(4, generator=torch.Generator().manual_seed(seed))
    counts = torch.tensor([6, 3, 2, 1])[order]
    token_N = torch.arange(4).repeat_interleave(counts)
    other = torch.tensor([1.0, 3.0, 6.0, 5.0], dtype=torch.float64)[order]
    return Exact(token_N, counts.double() / TOKENS, other / other.sum())


def pull(space: Exact, gradient_N: Tensor) -> float:
    """Return inf where the expected gradient is not that of a divergence between the policy and the other one.

    KL(policy, other), KL(other, policy) (k3's gradient) or their total variation: a step against it lowers the KL.
    """
    away_V = space.policy_V.log() - space.other_V.log()
    found = space.by_logits(gradient_N)
    if not bool(found.isfinite().all()):
        return math.inf
    slopes_V = (away_V, 1 - (-away_V).exp(), away_V.sign())
    wanted = [space.by_logits(slope_V[space.token_N]) for slope_V in slopes_V]
    size = float(found.norm())
    least = 1e-9 * float(gradient_N.abs().sum())
    gaps = [1 - float(found @ true) / (size * float(true.norm())) for true in wanted] if size > least else [2.0]
    return 0.0 if min(gaps) < PARALLEL else math.inf


def pulls_back(space: Exact, gradient_N: Tensor) -> float:
    """Return inf where a policy that has moved to the other distribution is not drawn back to the one that sampled.

    Either token by token, or on average over the samples, whose KL(sampler, policy) falls then.
    """
    moved_N = space.other_logp() - space.logp()
    each = bool((gradient_N * moved_N >= 0).all()) and bool((gradient_N * moved_N > 0).any())
    average = Exact(space.token_N, space.other_V, space.policy_V).by_logits(gradient_N)
    return 0.0 if each or float(average @ (space.other_V - space.policy_V)) > 0 else math.inf
