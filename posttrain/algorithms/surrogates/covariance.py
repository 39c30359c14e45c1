"""Clip-Cov and KL-Cov: the few tokens whose log-prob goes with their advantage, which make the entropy collapse.

cov = (A - mean A) (logp - mean logp)     log-probs at the start of the step, means over the whole step
"""

from __future__ import annotations

import torch
from pydantic import Field, model_validator
from torch import Tensor

from posttrain.algorithms.surrogates.base import ClipOptions, Options, Surrogate, Tokens
from posttrain.formulas.policy import outside, ppo_clip, token_log_ratio
from posttrain.formulas.ragged import Ragged, places, uniform_at

NEEDS = frozenset({"step_start_logp", "sample_key"})


class ClipCovOptions(ClipOptions):
    """PPO's clip, and which tokens lose their gradient in addition to those it cuts."""

    share: float = Field(2e-4, gt=0, lt=1, description="share of the step's tokens that are dropped, at least one")
    cov_low: float = Field(1.0, description="smallest covariance of a token that may be dropped")
    cov_high: float = Field(5.0, description="largest covariance of a token that may be dropped")

    @model_validator(mode="after")
    def _holds_something(self) -> ClipCovOptions:
        if self.cov_high <= self.cov_low:
            raise ValueError("cov_high must be above cov_low, or no token lies between them")
        return self


class KlCovOptions(Options):
    """Which tokens pay for moving away from the sampler, and how much."""

    share: float = Field(2e-3, gt=0, lt=1, description="share of the step's tokens that are charged, at least one")
    beta: float = Field(1.0, ge=0, description="price of abs(logp - old_logp) of a charged token")


def covariance(step: Ragged) -> Tensor:
    """The covariance of each token [N]; tokens that do not count in the loss have -inf.

    Means are of sorted values, so that the order of rows changes no bit of them.
    """
    counted_N = step.tokens["weight"] > 0
    parts = []
    for name in ("advantage", "step_start_logp"):
        column = step.tokens[name].double()
        seen = column[counted_N]
        parts.append(column - seen.sort().values.mean() if seen.numel() else column)
    return (parts[0] * parts[1]).masked_fill(~counted_N, -torch.inf)


def _chosen(candidate_N: Tensor, *rank: Tensor, most: int) -> Tensor:
    """The first `most` candidates by these columns, the last column deciding first."""
    order = torch.arange(candidate_N.numel(), device=candidate_N.device)[candidate_N]
    for column in rank:
        order = order[column[order].argsort(stable=True)]
    return torch.zeros_like(candidate_N).index_fill(0, order[:most], torch.ones((), dtype=torch.bool))


def _most(step: Ragged, share: float) -> int:
    return max(1, int(share * int((step.tokens["weight"] > 0).sum())))


def dropped(step: Ragged, options: ClipCovOptions) -> dict[str, Tensor]:
    """Random tokens with a covariance within the band that the clip does not cut, at the start of the step."""
    cov_N, lengths_B = covariance(step), step.lengths_B
    ratio_N = token_log_ratio(step.tokens["step_start_logp"], step.tokens["old_logp"], lengths_B).exp()
    cut_N = outside(ratio_N, step.tokens["advantage"], options.low, options.high)
    candidate_N = (cov_N >= options.cov_low) & (cov_N <= options.cov_high) & ~cut_N
    draw_N = uniform_at(step.repeat_to_tokens(step.rows["sample_key"]), places(lengths_B))
    return {"dropped": _chosen(candidate_N, draw_N, most=_most(step, options.share))}


def charged(step: Ragged, options: KlCovOptions) -> dict[str, Tensor]:
    """The tokens of the largest covariance; ties go by prompt and sample, then by position."""
    cov_N = covariance(step)
    rank = places(step.lengths_B), step.repeat_to_tokens(step.rows["sample_key"]), -cov_N
    return {"charged": _chosen(cov_N > -torch.inf, *rank, most=_most(step, options.share))}


def kl_cov(tokens: Tokens, options: KlCovOptions) -> Tensor:
    """r A, less beta abs(logp - old_logp) where charged (Cui 2025)."""
    charge = options.beta * tokens.log_ratio.abs()
    return tokens.ratio * tokens.advantage - charge.masked_fill(~tokens.columns["charged"], 0.0)


SURROGATES = {
    "clip_cov": Surrogate(
        ClipCovOptions,
        lambda tokens, o: ppo_clip(tokens.ratio, tokens.advantage, o.low, o.high),
        "min(r A, clip(r) A), 0 for a random share of the tokens with cov in [cov_low, cov_high]",
        clipped=lambda tokens, o: outside(tokens.ratio, tokens.advantage, o.low, o.high),
        prepare=dropped,
        needs=NEEDS,
    ),
    "kl_cov": Surrogate(
        KlCovOptions,
        kl_cov,
        "r A, less beta abs(logp - old_logp) for the share of the tokens with the largest cov",
        prepare=charged,
        needs=NEEDS,
        charge="beta",
    ),
}
