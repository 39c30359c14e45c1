"""CISPO: the ratio is a clipped weight, so every token keeps its gradient."""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from posttrain.algorithms.objective import AlgorithmRow
from posttrain.algorithms.policy.ppo import UpperEdge, lowest
from posttrain.algorithms.surrogate import Surrogate, Tokens


class CispoOptions(UpperEdge):
    """The bounds of a weight."""

    low: float | None = Field(None, gt=0, le=1, description="lower bound of the weight: 1 - low; null: no lower bound")
    high: float = Field(4.0, description="upper bound of the weight: 1 + high")


def cispo(tokens: Tokens, options: CispoOptions) -> Tensor:
    """sg(clip(r, 1 - low, 1 + high)) A logp (MiniMax 2025)."""
    weight = tokens.ratio.detach().clamp(lowest(options.low), 1 + options.high)
    return weight * tokens.advantage * tokens.logp


def clipped(tokens: Tokens, options: CispoOptions) -> Tensor:
    """Tell whether the weight differs from the ratio itself."""
    return (tokens.ratio > 1 + options.high) | (tokens.ratio < lowest(options.low))


SURROGATES = {"cispo": Surrogate(CispoOptions, cispo, "sg(clip(r, 1 - low, 1 + high)) A logp", clipped=clipped)}
ROWS = {
    "cispo": AlgorithmRow(
        "MiniMax 2025, arXiv:2506.13585",
        "-mean_tokens sg(min(r, 1 + high)) A logp",
        {"surrogate": "cispo", "aggregation": "token_mean"},
    )
}
