"""Train only on the tokens with the highest entropy, where a completion could have continued differently."""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from posttrain.algorithms.objective import AlgorithmRow
from posttrain.algorithms.policy.covariance import first_ranked, token_count
from posttrain.algorithms.policy.ppo import ClipOptions, clipped, term
from posttrain.algorithms.surrogate import Surrogate
from posttrain.formulas.ragged import Ragged, places

DECIMALS = 5
"""Minimum difference between compared entropies. A smaller difference may be rounding."""


class TopEntropyOptions(ClipOptions):
    """PPO's clip, and the tokens that have a loss."""

    share: float = Field(0.2, gt=0, le=1, description="share of the step's tokens that are trained (at least one)")


def dropped(step: Ragged, options: TopEntropyOptions) -> dict[str, Tensor]:
    """Drop all tokens except the tokens with the highest entropy at the start of the step.

    Ties: by prompt, sample, place. Completions of a prompt start with the same entropy, to the rounding of the pass.
    """
    counted_N = step.tokens["weight"] > 0
    entropy_N = step.tokens["step_start_entropy"].round(decimals=DECIMALS)
    rank = places(step.lengths_B), step.repeat_to_tokens(step.rows["sample_key"]), -entropy_N
    return {"dropped": counted_N & ~first_ranked(counted_N, *rank, count=token_count(step, options.share))}


SURROGATES = {
    "top_entropy": Surrogate(
        TopEntropyOptions,
        term,
        "min(r A, clip(r) A), 0 but for the share of the tokens with the highest entropy",
        clipped=clipped,
        prepare=dropped,
        needs=frozenset({"step_start_entropy", "sample_key"}),
    ),
}
ROWS = {
    "top_entropy": AlgorithmRow(
        "Wang 2025, arXiv:2506.01939",
        "-mean_tokens min(r A, clip(r, 0.8, 1.28) A) on the fifth of the tokens with the highest entropy; else as dapo",
        {
            "aggregation": "token_mean",
            "surrogate": {"type": "top_entropy", "high": 0.28},
            "resample": 3,
            "overlong": 0.2,
        },
    ),
}
