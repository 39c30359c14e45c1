"""Clip-Cov and KL-Cov: avoid entropy collapse by treating the few tokens with the largest cov specially.

cov = (A - mean A) (logp - mean logp)     log-probs at the start of the step, means over the whole step
"""

from __future__ import annotations

import torch
from pydantic import Field, model_validator
from torch import Tensor

from posttrain.algorithms.objective import AlgorithmRow
from posttrain.algorithms.policy.ppo import ClipOptions, clipped, outside, term
from posttrain.algorithms.surrogate import Surrogate, Tokens
from posttrain.formulas.policy import token_log_ratio
from posttrain.formulas.ragged import Ragged, places, uniform_at
from posttrain.settings.choices import Options

NEEDS = frozenset({"step_start_logp", "sample_key"})
NOISE = 1e-12
"""As a share of the largest value. A smaller difference from the mean is rounding."""


class ClipCovOptions(ClipOptions):
    """PPO's clip, and further tokens whose gradient is dropped."""

    share: float = Field(2e-4, gt=0, lt=1, description="share of the step's tokens that are dropped (at least one)")
    cov_low: float = Field(1.0, description="smallest covariance of tokens that may be dropped")
    cov_high: float = Field(5.0, description="largest covariance of tokens that may be dropped")

    @model_validator(mode="after")
    def _not_empty(self) -> ClipCovOptions:
        if self.cov_high <= self.cov_low:
            raise ValueError("cov_high must be above cov_low, otherwise no token lies between them")
        return self


class KlCovOptions(Options):
    """The tokens that are penalised for moving away from the sampling policy, and the coefficient."""

    share: float = Field(2e-3, gt=0, lt=1, description="share of the step's tokens that are penalised (at least one)")
    beta: float = Field(1.0, ge=0, description="coefficient of abs(logp - old_logp) for a penalised token")


def covariance(step: Ragged) -> Tensor:
    """Return the covariance of each token [N]. Tokens that do not count in the loss get -inf.

    Means are over sorted values, so that they do not depend on the order of rows. A value at the mean has covariance 0,
    even if rounding leaves a difference.
    """
    counted_N = step.tokens["weight"] > 0
    parts = []
    for name in ("advantage", "step_start_logp"):
        column = step.tokens[name].double()
        counted = column[counted_N]
        if counted.numel():
            column = column - counted.sort().values.mean()
            column = column.masked_fill(column.abs() <= NOISE * counted.abs().max(), 0.0)
        parts.append(column)
    return (parts[0] * parts[1]).masked_fill(~counted_N, -torch.inf)


def first_ranked(candidate_N: Tensor, *rank: Tensor, count: int) -> Tensor:
    """Return the first `count` candidates, sorted by these columns, the last column first."""
    order = torch.arange(candidate_N.numel(), device=candidate_N.device)[candidate_N]
    for column in rank:
        order = order[column[order].argsort(stable=True)]
    return torch.zeros_like(candidate_N).index_fill(0, order[:count], torch.ones((), dtype=torch.bool))


def token_count(step: Ragged, share: float) -> int:
    """Return the number of tokens in a share of the counted tokens, at least 1."""
    return max(1, int(share * int((step.tokens["weight"] > 0).sum())))


def dropped(step: Ragged, options: ClipCovOptions) -> dict[str, Tensor]:
    """At the start of the step, choose random tokens whose covariance is in the band and that the clip does not cut."""
    cov_N, lengths_B = covariance(step), step.lengths_B
    sampling_logp_N = step.tokens["sampling_logp"]  # what the clip itself is against
    ratio_N = token_log_ratio(step.tokens["step_start_logp"], sampling_logp_N, lengths_B).exp()
    cut_N = outside(ratio_N, step.tokens["advantage"], options.low, options.high)
    candidate_N = (cov_N >= options.cov_low) & (cov_N <= options.cov_high) & ~cut_N
    draw_N = uniform_at(step.repeat_to_tokens(step.rows["sample_key"]), places(lengths_B))
    return {"dropped": first_ranked(candidate_N, draw_N, count=token_count(step, options.share))}


def penalised(step: Ragged, options: KlCovOptions) -> dict[str, Tensor]:
    """Return the tokens with the largest covariance. Ties are broken by prompt, sample and position."""
    cov_N = covariance(step)
    rank = places(step.lengths_B), step.repeat_to_tokens(step.rows["sample_key"]), -cov_N
    return {"penalised": first_ranked(cov_N > -torch.inf, *rank, count=token_count(step, options.share))}


def kl_cov(tokens: Tokens, options: KlCovOptions) -> Tensor:
    """Return r A minus, for penalised tokens, beta abs(logp - old_logp) (Cui 2025)."""
    penalty = options.beta * tokens.log_ratio.abs()
    return tokens.ratio * tokens.advantage - penalty.masked_fill(~tokens.columns["penalised"], 0.0)


SURROGATES = {
    "clip_cov": Surrogate(
        ClipCovOptions,
        term,
        "min(r A, clip(r) A), 0 for a random share of the tokens with cov in [cov_low, cov_high]",
        clipped=clipped,
        prepare=dropped,
        needs=NEEDS,
    ),
    "kl_cov": Surrogate(
        KlCovOptions,
        kl_cov,
        "r A, less beta abs(logp - old_logp) for the share of the tokens with the largest cov",
        prepare=penalised,
        needs=NEEDS,
        charge="beta",
    ),
}
ROWS = {
    "clip_cov": AlgorithmRow(
        "Cui 2025, arXiv:2505.22617",
        "-mean_i mean_t min(r A, clip(r) A), 0 for a random 2e-4 of the tokens among those with cov in [1, 5]",
        {"surrogate": "clip_cov"},
    ),
    "kl_cov": AlgorithmRow(
        "Cui 2025, arXiv:2505.22617",
        "-mean_i mean_t [r A - beta abs(logp - old_logp) on the 2e-3 of the tokens with the largest cov]",
        {"surrogate": "kl_cov"},
    ),
}
