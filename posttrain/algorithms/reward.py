"""Reward model objectives: a scalar head trained on comparisons, or on the correctness of reasoning steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from posttrain.algorithms.objective import Loss, Objective, Prepared, State, columns_before_prepare, require_columns
from posttrain.formulas.preference import bradley_terry, centring, comparisons, step_correctness
from posttrain.formulas.ragged import Ragged
from posttrain.params import Params


class RewardKnobs(Params):
    """The settings of the Bradley-Terry objective."""

    margin: float = Field(0.0, ge=0, description="by how much the chosen answer's score must win")
    margins: Literal["constant", "column"] = Field("constant", description="column: plus each winner's own margin")
    compare: Literal["pairs", "ranks"] = Field(
        "pairs", description="ranks: all K (K - 1) / 2 pairs of a prompt's answers"
    )
    centring: float = Field(0.0, ge=0, description="coefficient of (s_c + s_r)^2, which keeps scores around 0")


@dataclass(frozen=True)
class RewardObjective(Objective):
    """-logsigmoid(s_c - s_r - margin), mean over the pairs of a prompt, then over prompts (Ouyang 2022).

    The loss leaves a constant of the scores free; `demonstration_bias` is the one by which demonstrations average 0.
    """

    knobs: RewardKnobs

    @property
    def needs(self) -> frozenset[str]:
        needs = {"score", "side" if self.knobs.compare == "pairs" else "rank"}
        return frozenset(needs | ({"margin"} if self.knobs.margins == "column" else set()))

    @torch.no_grad()
    def prepare(self, step: Ragged, state: State) -> Prepared:
        """1 / (prompts * pairs of the prompt) on each row; prompts without a comparison have weight 0."""
        require_columns(step, columns_before_prepare(self.needs), "reward")
        won, _ = comparisons(self._rank(step), step.items)
        if won.numel() == 0:
            raise ValueError("no item holds two answers of different rank, so there is nothing to train on")
        pairs_B = _per_item_count(won, step.items)
        prompts = torch.unique(step.items[pairs_B > 0]).numel()
        return Prepared(step.with_rows(weight=(pairs_B > 0) / (pairs_B.clamp(min=1) * prompts)), dict(state))

    def loss(self, micro: Ragged) -> Loss:
        """sum over comparisons of weight * -logsigmoid(s_c - s_r - margin)."""
        score = micro.rows["score"]
        score = score.to(torch.promote_types(score.dtype, torch.float32))
        won, lost = comparisons(self._rank(micro), micro.items)
        weight, better, worse = micro.rows["weight"][won].to(score.dtype), score[won], score[lost]
        margin: Tensor | float = self.knobs.margin
        if self.knobs.margins == "column":
            margin = margin + micro.rows["margin"][won].to(score.dtype)
        total = (weight * bradley_terry(better, worse, margin)).sum()
        if self.knobs.centring:
            total = total + self.knobs.centring * (weight * centring(better, worse)).sum()
        gap = better - worse
        return Loss(total, {"accuracy": (weight * (gap > 0)).sum(), "margin": (weight * gap).sum().detach()})

    def _rank(self, step: Ragged) -> Tensor:
        return step.rows["rank"] if self.knobs.compare == "ranks" else -step.rows["side"]


class ProcessKnobs(Params):
    """The settings of a process reward model."""

    aggregation: Literal["step_mean", "solution_mean"] = Field(
        "step_mean", description="mean over all steps, or over a solution's steps and then over solutions"
    )


@dataclass(frozen=True)
class ProcessObjective(Objective):
    """-(y log sigmoid(s) + (1 - y) log sigmoid(-s)) at each step's last token (Lightman 2023)."""

    knobs: ProcessKnobs

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"step_score", "step_label"})

    @torch.no_grad()
    def prepare(self, step: Ragged, state: State) -> Prepared:
        """1 / steps, or 1 / (solutions * steps of the solution), on each step's last token."""
        require_columns(step, columns_before_prepare(self.needs), "process")
        label_N = step.tokens["step_label"]
        if not bool(((label_N == -1) | ((label_N >= 0) & (label_N <= 1))).all()):
            raise ValueError("step_label must lie in [0, 1] at a step's last token and be -1 elsewhere")
        ends_N = (label_N >= 0).double()
        steps_B = step.sum_rows(ends_N)
        if self.knobs.aggregation == "step_mean":
            return Prepared(step.with_tokens(weight=ends_N / ends_N.sum().clamp(min=1)), dict(state))
        solutions = (steps_B > 0).sum().clamp(min=1)
        return Prepared(
            step.with_tokens(weight=ends_N / step.repeat_to_tokens(steps_B.clamp(min=1) * solutions)), dict(state)
        )

    def loss(self, micro: Ragged) -> Loss:
        """sum of weight * cross-entropy of the step's score against its label."""
        score, label = micro.tokens["step_score"], micro.tokens["step_label"]
        score = score.to(torch.promote_types(score.dtype, torch.float32))
        weight = micro.tokens["weight"].to(score.dtype)
        total = (weight * step_correctness(score, label.clamp(min=0).to(score.dtype))).sum()
        return Loss(total, {"accuracy": (weight * ((score > 0) == (label > 0.5))).sum()})


def _per_item_count(rows: Tensor, item_B: Tensor) -> Tensor:
    """How many of `rows` belong to each row's item, in double precision."""
    _, index_B = torch.unique(item_B, return_inverse=True)
    counts = torch.zeros(item_B.numel(), dtype=torch.float64, device=item_B.device)
    return counts.index_add_(0, index_B[rows], torch.ones_like(rows, dtype=torch.float64))[index_B]
