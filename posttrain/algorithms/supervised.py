"""Supervised objectives: the likelihood of given tokens, or a teacher's distribution over them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from posttrain.algorithms.objective import Loss, Prepared, State
from posttrain.algorithms.row import ignored
from posttrain.formulas import distill, weight
from posttrain.formulas.ragged import Ragged
from posttrain.params import Params

Aggregation = Literal["token_mean", "sequence_mean"]


class LikelihoodKnobs(Params):
    """How the tokens' likelihoods become one number."""

    aggregation: Aggregation = Field("token_mean", description="token or sequence mean")


@dataclass(frozen=True)
class LikelihoodObjective:
    """-mean log p(token): pretraining and SFT."""

    knobs: LikelihoodKnobs

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"entropy"})

    @property
    def by_token(self) -> bool:
        return True

    def initial_state(self) -> State:
        return {}

    @torch.no_grad()
    def prepare(self, step: Ragged, state: State) -> Prepared:
        """1 / tokens, or 1 / (rows * tokens of the row), on each token."""
        return _weighted(step, state, self.knobs.aggregation)

    def loss(self, micro: Ragged) -> Loss:
        """-sum of weight * logp."""
        entropy = micro.tokens["entropy"].detach()
        share = micro.tokens["share"].to(entropy.dtype)
        return Loss(-_summed(micro, micro.tokens["logp"]), {"entropy": (share * entropy).sum()})


class DistillKnobs(Params):
    """Which divergence from the teacher is made small, and how tokens become one number."""

    divergence: Literal["forward_kl", "reverse_kl", "jensen_shannon"] = Field(
        "forward_kl", description="KL(teacher || student), KL(student || teacher), or the mixture between (GKD)"
    )
    beta: float = Field(0.5, gt=0, lt=1, description="jensen_shannon: share of the teacher in the mixture")
    temperature: float = Field(1.0, gt=0, description="of both distributions")
    aggregation: Aggregation = Field("token_mean", description="token or sequence mean")

    @model_validator(mode="after")
    def _read(self) -> DistillKnobs:
        wrong = ignored(self, {"beta": ("divergence", frozenset({"jensen_shannon"}))})
        if wrong:
            raise ValueError(wrong[0])
        return self

    def formula(self) -> distill.Divergence:
        """The divergence as a function of (student logits, teacher logits), for whoever makes `teacher_kl`."""
        if self.divergence == "jensen_shannon":
            return lambda student, teacher: distill.jensen_shannon(student, teacher, self.beta, self.temperature)
        rule = distill.forward_kl if self.divergence == "forward_kl" else distill.reverse_kl
        return lambda student, teacher: rule(student, teacher, self.temperature)


@dataclass(frozen=True)
class DistillObjective:
    """mean of the divergence from a teacher on given or own samples (GKD, Agarwal 2023).

    Context distillation (Askell 2021) is the same with a teacher that sees another prompt.
    """

    knobs: DistillKnobs

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"teacher_kl"})

    @property
    def by_token(self) -> bool:
        return False

    def initial_state(self) -> State:
        return {}

    @torch.no_grad()
    def prepare(self, step: Ragged, state: State) -> Prepared:
        """1 / tokens, or 1 / (rows * tokens of the row), on each token."""
        return _weighted(step, state, self.knobs.aggregation)

    def loss(self, micro: Ragged) -> Loss:
        """sum of weight * divergence."""
        divergence = micro.tokens["teacher_kl"]
        share = micro.tokens["share"].to(divergence.dtype)
        return Loss(_summed(micro, divergence), {"teacher_kl": (share * divergence.detach()).sum()})


def _weighted(step: Ragged, state: State, aggregation: Aggregation) -> Prepared:
    kept_B = (step.lengths_B > 0).double()
    rule = weight.token_mean if aggregation == "token_mean" else weight.sequence_mean
    weight_N, share_N = rule(step.lengths_B, kept_B), weight.token_mean(step.lengths_B, kept_B)
    metrics = {"length": float(step.lengths_B.float().mean())}
    return Prepared(step.with_tokens(weight=weight_N, share=share_N), dict(state), metrics)


def _summed(micro: Ragged, item_N: Tensor) -> Tensor:
    dtype = torch.promote_types(item_N.dtype, torch.float32)
    return (micro.tokens["weight"].to(dtype) * item_N.to(dtype)).sum()
