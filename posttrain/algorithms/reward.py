"""The objective of reward models: a scalar head trained on comparisons."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from posttrain.algorithms.objective import (
    HeldoutItems,
    Loss,
    Objective,
    Prepared,
    State,
    columns_before_prepare,
    require_columns,
)
from posttrain.formulas.ragged import Ragged
from posttrain.formulas.reward import bradley_terry, centring, comparisons
from posttrain.settings.params import Params
from posttrain.text.packing import sent


class RewardConfig(Params):
    """The settings of the Bradley-Terry objective."""

    margin: float = Field(0.0, ge=0, description="margin that the chosen answer's score must exceed")
    margins: Literal["constant", "column"] = Field("constant", description="column: add each winner's own margin")
    compare: Literal["pairs", "ranks", "labels"] = Field(
        "pairs",
        description="ranks: all K (K - 1) / 2 pairs of a prompt's answers; labels: each answer separately, right "
        "or wrong",
    )

    @model_validator(mode="after")
    def _compares_what_it_centres(self) -> RewardConfig:
        if self.compare == "labels" and (self.margin or self.centring or self.margins == "column"):
            raise ValueError("margin, margins and centring need comparisons, but compare is labels. Remove them")
        return self

    centring: float = Field(0.0, ge=0, description="coefficient of (s_c + s_r)^2, which keeps scores near 0")


@dataclass(frozen=True)
class RewardObjective(Objective):
    """-logsigmoid(s_c - s_r - margin), mean over the pairs of a prompt, then over prompts (Ouyang 2022).

    With labels y = 1 or -1: -logsigmoid(y s), mean over answers. With pairs, the loss does not determine a constant
    offset of the scores. `demonstration_bias` is the offset for which demonstrations average 0.
    """

    config: RewardConfig

    @property
    def needs(self) -> frozenset[str]:
        needs = {"score", {"pairs": "side", "ranks": "rank", "labels": "label"}[self.config.compare]}
        return frozenset(needs | ({"margin"} if self.config.margins == "column" else set()))

    @torch.no_grad()
    def prepare(self, step: Ragged, state: State) -> Prepared:
        """Return the weights 1 / (prompts * pairs of the prompt) per row.

        Prompts without a comparison have weight 0.
        """
        require_columns(step, columns_before_prepare(self.needs), "reward")
        if self.config.compare == "labels":
            weight_B = torch.full_like(step.rows["label"], 1 / len(step), dtype=torch.float64)
            return Prepared(step.with_rows(weight=weight_B), dict(state))
        won, _ = comparisons(self._rank(step), step.items)
        if won.numel() == 0:
            raise ValueError("no item has two answers of different rank, so there is nothing to train on")
        pairs_B = _per_item_count(won, step.items)
        prompts = torch.unique(step.items[pairs_B > 0]).numel()
        return Prepared(step.with_rows(weight=(pairs_B > 0) / (pairs_B.clamp(min=1) * prompts)), dict(state))

    def loss(self, micro: Ragged, state: State) -> Loss:  # noqa: ARG002
        """Return the sum over comparisons of weight * -logsigmoid(s_c - s_r - margin)."""
        score = micro.rows["score"]
        score = score.to(torch.promote_types(score.dtype, torch.float32))
        if self.config.compare == "labels":
            signed = micro.rows["label"].to(score.dtype) * score
            weight = micro.rows["weight"].to(score.dtype)
            metrics = {"accuracy": (weight * (signed > 0)).sum(), "margin": (weight * signed).sum().detach()}
            return Loss(-(weight * torch.nn.functional.logsigmoid(signed)).sum(), metrics)
        known = micro.host or micro
        won, lost = (sent(part, score.device) for part in comparisons(self._rank(known), known.items))
        weight, better, worse = micro.rows["weight"][won].to(score.dtype), score[won], score[lost]
        margin: Tensor | float = self.config.margin
        if self.config.margins == "column":
            margin = margin + micro.rows["margin"][won].to(score.dtype)
        total = (weight * bradley_terry(better, worse, margin)).sum()
        if self.config.centring:
            total = total + self.config.centring * (weight * centring(better, worse)).sum()
        gap = better - worse
        return Loss(total, {"accuracy": (weight * (gap > 0)).sum(), "margin": (weight * gap).sum().detach()})

    def heldout(self, micro: Ragged) -> HeldoutItems:
        """Return the loss of each pair, without the margins of training."""
        score, side = micro.rows["score"].float(), micro.rows["side"]
        won, lost = comparisons(-side, micro.items)
        gap = score[won] - score[lost]
        loss_I = bradley_terry(score[won], score[lost])
        return HeldoutItems(loss_I, torch.ones_like(loss_I), {"accuracy": gap > 0, "margin": gap})

    def _rank(self, step: Ragged) -> Tensor:
        return step.rows["rank"] if self.config.compare == "ranks" else -step.rows["side"]


def _per_item_count(rows: Tensor, item_B: Tensor) -> Tensor:
    """Return how many of `rows` belong to each row's item, in double precision."""
    _, index_B = torch.unique(item_B, return_inverse=True)
    counts = torch.zeros(item_B.numel(), dtype=torch.float64, device=item_B.device)
    return counts.index_add_(0, index_B[rows], torch.ones_like(rows, dtype=torch.float64))[index_B]
