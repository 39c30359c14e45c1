"""DPPO: mask tokens by their divergence from the sampling policy instead of their ratio."""

from __future__ import annotations

from collections.abc import Callable

import torch
from pydantic import Field
from torch import Tensor

from posttrain.algorithms.objective import AlgorithmRow
from posttrain.algorithms.surrogate import Surrogate, Tokens
from posttrain.settings.choices import Options

NEARLY_CERTAIN = -1e-7
"""A log-prob above this is treated as this in log(1 - p)."""


class DppoOptions(Options):
    """How far a token's probability may move, and the upper bound of its weight."""

    limit_pos: float = Field(0.2, gt=0, description="largest divergence for tokens with A > 0")
    limit_neg: float = Field(0.2, gt=0, description="largest divergence for tokens with A < 0")
    cap: float = Field(5.0, ge=1, description="upper bound of the ratio as a weight")


class DppoKlOptions(DppoOptions):
    """The same options with limits on the scale of the KL."""

    limit_pos: float = Field(0.05, gt=0, description="largest divergence for tokens with A > 0")
    limit_neg: float = Field(0.05, gt=0, description="largest divergence for tokens with A < 0")


def total_variation(logp: Tensor, old_logp: Tensor) -> Tensor:
    """abs(pi - mu) of the sampled token."""
    return (logp.exp() - old_logp.exp()).abs()


def binary_kl(logp: Tensor, old_logp: Tensor) -> Tensor:
    """mu log(mu / pi) + (1 - mu) log((1 - mu) / (1 - pi)): KL of the sampled token against all others."""
    mu = old_logp.exp()
    return mu * (old_logp - logp) + (1 - mu) * (_log_rest(old_logp) - _log_rest(logp))


def _log_rest(logp: Tensor) -> Tensor:
    return torch.log(-torch.expm1(logp.clamp(max=NEARLY_CERTAIN)))


def _dppo(divergence: Callable[[Tensor, Tensor], Tensor], options: type[DppoOptions], formula: str) -> Surrogate:
    def masked(tokens: Tokens, o: DppoOptions) -> Tensor:
        """Tell whether a token is beyond the limit and the update would move it further (Qi 2026)."""
        with torch.no_grad():
            far, moved = divergence(tokens.logp, tokens.old_logp), tokens.logp - tokens.old_logp
            up = (tokens.advantage > 0) & (moved > 0) & (far > o.limit_pos)
            return up | ((tokens.advantage < 0) & (moved < 0) & (far > o.limit_neg))

    def term(tokens: Tokens, o: DppoOptions) -> Tensor:
        """sg(min(r, cap) M) A logp, r against the sampler."""
        weight = tokens.ratio.detach().clamp(max=o.cap).masked_fill(masked(tokens, o), 0.0)
        return weight * tokens.advantage * tokens.logp

    return Surrogate(options, term, formula, clipped=masked, of_sampler=True)


SURROGATES = {
    "dppo_tv": _dppo(
        total_variation, DppoOptions, "sg(min(r, cap) M) A logp, M = 0 where moving away and abs(pi - mu) > limit"
    ),
    "dppo_kl": _dppo(
        binary_kl, DppoKlOptions, "sg(min(r, cap) M) A logp, M = 0 where moving away and binary KL(mu || pi) > limit"
    ),
}
ROWS = {
    "dppo_tv": AlgorithmRow(
        "Qi 2026, arXiv:2602.04879",
        "-mean_tokens sg(min(r, 5) M) A logp, M = 0 where moving away from the sampler and abs(pi - mu) > 0.2",
        {"surrogate": "dppo_tv", "aggregation": "token_mean"},
    ),
    "dppo_kl": AlgorithmRow(
        "Qi 2026, arXiv:2602.04879",
        "-mean_tokens sg(min(r, 5) M) A logp, M = 0 where moving away from the sampler and binary KL > 0.05",
        {"surrogate": "dppo_kl", "aggregation": "token_mean"},
    ),
}
