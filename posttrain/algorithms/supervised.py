"""The objective of pretraining and SFT."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from posttrain.algorithms.objective import HeldoutItems, Loss, Objective, Prepared, State
from posttrain.formulas.ragged import Ragged, sequence_mean, token_mean
from posttrain.settings.params import Params

Aggregation = Literal["token_mean", "sequence_mean"]


class LikelihoodConfig(Params):
    """How the tokens' losses are averaged."""

    aggregation: Aggregation = Field("token_mean", description="average token losses over tokens or over sequences")
    by_probability: bool = Field(
        False, description="weigh each token's loss by its own probability, without gradient (DFT, Wu 2025)"
    )


@dataclass(frozen=True)
class LikelihoodObjective(Objective):
    """-mean log p(token): pretraining and SFT; or -mean sg(p) log p."""

    config: LikelihoodConfig

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"entropy"})

    @property
    def by_token(self) -> bool:
        return True

    @property
    def entropy_in_loss(self) -> bool:
        return False

    @torch.no_grad()
    def prepare(self, step: Ragged, state: State) -> Prepared:
        """Return the weights 1 / tokens, or 1 / (rows * tokens of the row), per token."""
        return with_weights(step, state, self.config.aggregation)

    def loss(self, micro: Ragged, state: State) -> Loss:  # noqa: ARG002
        """Return -sum of weight * logp; or of weight * sg(p) * logp, with the gradient of -sum of weight * p."""
        entropy = micro.tokens["entropy"].detach()
        mean_N = micro.tokens["token_mean_weight"].to(entropy.dtype)
        logp = micro.tokens["logp"]
        term = logp.detach().exp() * logp if self.config.by_probability else logp
        return Loss(-weighted_sum(micro, term), {"entropy": (mean_N * entropy).sum()})

    def heldout(self, micro: Ragged) -> HeldoutItems:
        """Return the mean loss of each row's tokens."""
        by_row = self.config.aggregation == "sequence_mean"
        tokens_B = micro.lengths_B.double()
        return HeldoutItems(-micro.mean_rows(micro.tokens["logp"]), torch.ones_like(tokens_B) if by_row else tokens_B)


def with_weights(step: Ragged, state: State, aggregation: Aggregation) -> Prepared:
    """Return the step with a weight per token; 0 in rows with 0 in the column `counts`."""
    kept_B = (step.lengths_B > 0).double() * step.rows.get("counts", 1.0)
    rule = token_mean if aggregation == "token_mean" else sequence_mean
    weight_N, token_mean_N = rule(step.lengths_B, kept_B), token_mean(step.lengths_B, kept_B)
    metrics = {"length": float(step.lengths_B.float().mean())}
    step = step.with_tokens(weight=weight_N, token_mean_weight=token_mean_N)
    return Prepared(step, dict(state), metrics, counts=bool(kept_B.any()))


def weighted_sum(micro: Ragged, values_N: Tensor) -> Tensor:
    """Return the sum of weight * value."""
    dtype = torch.promote_types(values_N.dtype, torch.float32)
    return (micro.tokens["weight"].to(dtype) * values_N.to(dtype)).sum()
