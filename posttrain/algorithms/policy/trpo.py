"""TRPO: the importance-weighted objective, improved within a bound on the KL (its step: `update: trpo`)."""

from __future__ import annotations

from torch import Tensor

from posttrain.algorithms.objective import AlgorithmRow
from posttrain.algorithms.surrogate import Surrogate, Tokens
from posttrain.settings.choices import Options


def importance(tokens: Tokens, _: Options) -> Tensor:
    """r A: the importance-weighted objective."""
    return tokens.ratio * tokens.advantage


SURROGATES = {"importance": Surrogate(Options, importance, "r A")}
ROWS = {
    "trpo": AlgorithmRow(
        "Schulman 2015, arXiv:1502.05477",
        "maximise mean_tokens r A subject to mean KL(old || new) <= delta",
        {"advantage": "group_zscore", "surrogate": "importance", "aggregation": "token_mean", "update": "trpo"},
    )
}
