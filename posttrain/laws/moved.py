"""How a policy loss responds to tokens that have moved: the side of its clip, its weights, and its KL's pull.

Every row has one token here, so losses over tokens and over sequences agree. `Respond` is the loss under test:
advantages and log ratios of the tokens -> the gradient of the loss with respect to their log-probs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

import torch
from torch import Tensor

from posttrain.laws.examples import Example, Miss, furthest

TOKENS = 12
"""The number of rows, with one token each. It is divisible by 2, 3, 4 and 6."""
Respond = Callable[[Tensor, Tensor], Tensor]

SIGNS = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(TOKENS // 2)
"""Every other token is better than expected."""
DISTANCES = (0.001, 0.0025, 0.006, 0.015, 0.04, 0.1, 0.25, 0.6, 1.5, 2.9)
"""Log ratios. The last one is a factor of 18."""
SMALL = 1e-5
"""A log ratio within every clip."""
EVERY = 3
"""The tokens hardly depend on a case's shape, so the clip and the weights are tested only on every third one."""
SLOPE = 1e-3
"""The smallest relative change that counts as one."""
PARALLEL = 1e-6
EVERY_TOKEN: Final = "every token"


def clip_side(respond: Respond) -> float:
    """Return inf if a token that moved against its advantage is pushed further or loses its gradient first.

    A clip stops tokens that have moved in the direction of their advantage. A token that moved the other way must be
    able to return.
    """
    counted = _push(respond, 0.0) != 0
    returning = {distance: _push(respond, -distance) for distance in DISTANCES}
    for distance, push in returning.items():
        if bool((push < 0).any()):
            return Miss(math.inf, partial(_pushed, -distance, push, int(push.argmin()), "0, or "))
    for of_sign in (counted & (SIGNS > 0), counted & (SIGNS < 0)):
        stuck = next((distance for distance, push in returning.items() if _lost(push, of_sign)), None)
        near = [distance for distance in DISTANCES if stuck is not None and distance < stuck]
        if stuck is not None and not any(_lost(_push(respond, distance), of_sign) for distance in near):
            return Miss(math.inf, partial(_pushed, -stuck, returning[stuck], int(of_sign.nonzero()[0]), ""))
    return 0.0


def _pushed(moved: float, push_N: Tensor, token: int, zero: str) -> Example:
    """Return the gradient from a token's advantage after the token has moved this far towards it."""
    sign, gradient = float(SIGNS[token]), -float(SIGNS[token] * push_N[token])
    inputs = {"logp - old_logp": sign * moved, "advantage": sign, "mask": 1.0}
    wanted = f"{zero}{'below' if sign > 0 else 'above'} 0"
    return Example(f"row {token}, token 0", inputs, "gradient by logp from its advantage", gradient, wanted)


def _push(respond: Respond, moved: float) -> Tensor:
    """Return each token's push towards its advantage after it has moved this far towards it; 0: no gradient.

    The loss's gradient without an advantage (a penalty for moving) is subtracted.
    """
    moved_N = moved * SIGNS
    return -SIGNS * (respond(SIGNS, moved_N) - respond(0 * SIGNS, moved_N))


def _lost(push: Tensor, of_sign: Tensor) -> bool:
    """Tell whether no token of one sign has a gradient."""
    return bool(of_sign.any()) and not bool(push[of_sign].any())


def importance(respond: Respond) -> float:
    """Return inf if the weight falls while policy / sampler rises, rises faster than it, or is only capped below 1.

    A token's weight is the policy's probability over the sampler's, or less. It is not the inverse or the square.
    """
    slopes = []
    for sign in (1.0, -1.0):
        here, low, high = (_weight(respond, sign, log_ratio) for log_ratio in (0.0, -SMALL, SMALL))
        slopes.append((high - low) / (2 * SMALL) / (here or 1.0))
        flat = here > 0 and abs(slopes[-1]) < SLOPE
        flat = flat and all(abs(_weight(respond, sign, below) / here - 1) < SLOPE for below in (-0.05, -0.5))
        if flat and (far := _weight(respond, sign, 2.0)) > (1 + SLOPE) * here:
            wanted = f"at most {here:.6g}, as at a log ratio of 0 and below"
            return Miss(math.inf, partial(Example, EVERY_TOKEN, _at(sign, 2.0), "weight", far, wanted))
    if max(slopes) >= -SLOPE and min(slopes) <= 1 + SLOPE:
        return 0.0
    worst = max(slopes) if max(slopes) < -SLOPE else min(slopes)
    quantity, sign = "slope of its weight by the log ratio, relative to the weight", (1.0, -1.0)[slopes.index(worst)]
    return Miss(math.inf, partial(Example, EVERY_TOKEN, _at(sign, 0.0), quantity, worst, "0 to 1"))


def _at(sign: float, log_ratio: float) -> dict[str, float]:
    return {"logp - old_logp": log_ratio, "advantage": sign, "mask": 1.0}


def _weight(respond: Respond, sign: float, log_ratio: float) -> float:
    """Return the sum of the tokens' pushes towards an advantage of this sign, at one log ratio."""
    advantage, moved = sign * torch.ones_like(SIGNS), torch.full_like(SIGNS, log_ratio)
    return float(((respond(0 * advantage, moved) - respond(advantage, moved)) * advantage).sum())


class Exact(NamedTuple):
    """A policy over four tokens with samples in exact proportion, and another distribution."""

    token_N: Tensor
    """The sampled token of each of the 12 rows."""
    policy_V: Tensor
    other_V: Tensor

    def logp(self) -> Tensor:
        """Return the log-prob of each row's token under the policy."""
        return self.policy_V.log()[self.token_N]

    def other_logp(self) -> Tensor:
        """Return the log-prob of each row's token under the other distribution."""
        return self.other_V.log()[self.token_N]

    def by_logits(self, gradient_N: Tensor) -> Tensor:
        """Return the gradient with respect to the policy's logits, from the gradient for the rows' log-probs."""
        onehot_NV = torch.nn.functional.one_hot(self.token_N, 4).to(gradient_N.dtype)
        return (gradient_N[:, None] * (onehot_NV - self.policy_V)).sum(0)


def exact(seed: int) -> Exact:
    """Return a policy and another distribution over four tokens, in an order set by the seed."""
    order = torch.randperm(4, generator=torch.Generator().manual_seed(seed))
    counts = torch.tensor([6, 3, 2, 1])[order]
    token_N = torch.arange(4).repeat_interleave(counts)
    other = torch.tensor([1.0, 3.0, 6.0, 5.0], dtype=torch.float64)[order]
    return Exact(token_N, counts.double() / TOKENS, other / other.sum())


def pull(space: Exact, gradient_N: Tensor) -> float:
    """Return inf if the expected gradient is not that of a divergence between the policy and the other distribution.

    Allowed are KL(policy, other), KL(other, policy) (k3's gradient) or total variation. A step against it lowers the
    KL.
    """
    away_V = space.policy_V.log() - space.other_V.log()
    gradient = space.by_logits(gradient_N)
    if not bool(gradient.isfinite().all()):
        return Miss(math.inf, partial(_by_logit, space, gradient, space.by_logits(away_V[space.token_N])))
    slopes_V = (away_V, 1 - (-away_V).exp(), away_V.sign())
    wanted = [space.by_logits(slope_V[space.token_N]) for slope_V in slopes_V]
    size = float(gradient.norm())
    least = 1e-9 * float(gradient_N.abs().sum())
    gaps = [1 - float(gradient @ true) / (size * float(true.norm())) for true in wanted] if size > least else [2.0]
    if min(gaps) < PARALLEL:
        return 0.0
    true = wanted[gaps.index(min(gaps))]
    return Miss(
        math.inf, partial(_by_logit, space, gradient, true * (size / float(true.norm()) if size > least else 1.0))
    )


def _by_logit(space: Exact, actual_V: Tensor, expected_V: Tensor) -> Example:
    """Return the gradient with respect to the logit of the token that is furthest from the nearest divergence's."""
    at = furthest(actual_V - expected_V)
    row = int((space.token_N == at).nonzero()[0])
    inputs = {"logp": float(space.policy_V[at].log()), "logp of the other policy": float(space.other_V[at].log())}
    place = f"token {at} of a vocabulary of 4, as in row {row}"
    actual, expected = float(actual_V[at]), float(expected_V[at])
    return Example(place, inputs | {"advantage": 0.0}, "gradient by its logit", actual, expected)


def pulls_back(space: Exact, gradient_N: Tensor) -> float:
    """Return inf if a policy that has moved to the other distribution is not pulled back to the sampling policy.

    It must be pulled back token by token, or on average over the samples, so that KL(sampler, policy) falls.
    """
    moved_N = space.other_logp() - space.logp()
    each = bool((gradient_N * moved_N >= 0).all()) and bool((gradient_N * moved_N > 0).any())
    average = Exact(space.token_N, space.other_V, space.policy_V).by_logits(gradient_N)
    if each or float(average @ (space.other_V - space.policy_V)) > 0:
        return 0.0
    return Miss(math.inf, partial(_drawn_away, space, gradient_N))


def _drawn_away(space: Exact, gradient_N: Tensor) -> Example:
    moved_N = space.other_logp() - space.logp()
    at = int((gradient_N * moved_N).argmin())
    inputs = {"logp": float(space.other_logp()[at]), "old_logp": float(space.logp()[at]), "advantage": 0.0}
    wanted = "above 0" if moved_N[at] > 0 else "below 0"
    return Example(f"row {at}, token 0", inputs, "gradient by logp", float(gradient_N[at]), wanted)
