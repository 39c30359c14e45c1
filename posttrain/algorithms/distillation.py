"""The distillation objective, alone or combined with a policy objective, and its settings."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import torch
from pydantic import Field, model_validator

from posttrain.algorithms.distill.kl import FORWARD
from posttrain.algorithms.divergence import DIVERGENCES, Divergence
from posttrain.algorithms.objective import AlgorithmRow, Loss, Objective, Prepared, State, typed
from posttrain.algorithms.policy_config import PolicyConfig
from posttrain.algorithms.policy_objective import PolicyObjective
from posttrain.algorithms.supervised import Aggregation, weighted_sum, with_weights
from posttrain.formulas import distill
from posttrain.formulas.ragged import Ragged
from posttrain.settings.choices import OneOf, Options
from posttrain.settings.listing import Listing
from posttrain.settings.params import Params

DIVERGENCE: OneOf[Divergence] = OneOf(DIVERGENCES, FORWARD)


class TeacherConfig(Params):
    """The divergence from the teacher, and the teacher's extra context."""

    divergence: Annotated[Options, DIVERGENCE] = Field(
        DIVERGENCE.chosen, description="the divergence from the teacher, which training minimises"
    )
    temperature: float = Field(1.0, gt=0, description="divide the logits of both models by this")
    context: str | None = Field(
        None,
        min_length=1,
        description="a system turn that only the teacher gets; {answer} and {NAME} are replaced by the row's "
        "answer and `info`",
    )

    @model_validator(mode="after")
    def _context_is_text(self) -> TeacherConfig:
        if self.context is not None and not self.context.strip():
            raise ValueError("context is blank. Give the system turn's text, or null")
        return self

    def formula(self) -> distill.Divergence:
        """Return the divergence as a function of (student logits, teacher logits) for the column `teacher_kl`."""
        measure = DIVERGENCE.entry(self.divergence.type).measure
        return lambda student, teacher: measure(student, teacher, self.temperature, self.divergence)


class DistillConfig(TeacherConfig):
    """The divergence from the teacher, and the averaging of token losses."""

    aggregation: Aggregation = Field("token_mean", description="average token losses over tokens or over sequences")


class TaughtConfig(PolicyConfig, TeacherConfig):
    """A policy objective, and the weight of the divergence that is added to it."""

    teacher_coef: float = Field(0.1, gt=0, description="weight of the divergence in the loss of a policy algorithm")


@dataclass(frozen=True)
class DistillObjective(Objective):
    """The mean divergence from a teacher on demonstrations or the student's samples (GKD, Agarwal 2023).

    Context distillation (Askell 2021) is the same with a teacher that sees another prompt.
    """

    config: DistillConfig

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"teacher_kl"})

    @torch.no_grad()
    def prepare(self, step: Ragged, state: State) -> Prepared:
        """Return the weights 1 / tokens, or 1 / (rows * tokens of the row), per token."""
        return with_weights(step, state, self.config.aggregation)

    def loss(self, micro: Ragged, state: State) -> Loss:  # noqa: ARG002
        """Return the sum of weight * divergence."""
        divergence = micro.tokens["teacher_kl"]
        mean_N = micro.tokens["token_mean_weight"].to(divergence.dtype)
        return Loss(weighted_sum(micro, divergence), {"teacher_kl": (mean_N * divergence.detach()).sum()})


@dataclass(frozen=True)
class TaughtObjective(PolicyObjective):
    """A policy objective plus teacher_coef * divergence from a teacher, with the policy loss's token weights."""

    config: TaughtConfig

    @cached_property
    def needs(self) -> frozenset[str]:
        return super().needs | {"teacher_kl"}

    def loss(self, micro: Ragged, state: State) -> Loss:
        """Return the policy's loss + teacher_coef * sum of weight * divergence."""
        policy, tokens = super().loss(micro, state), micro.tokens
        total = policy.total + self.config.teacher_coef * (tokens["weight"] * tokens["teacher_kl"]).sum()
        mean = (tokens["token_mean_weight"] * tokens["teacher_kl"].detach()).sum()
        return Loss(total, {**policy.metrics, "teacher_kl": mean})


class DistillRunConfig(DistillConfig):
    """A divergence, and the answers that it is computed on."""

    own: float = Field(1.0, ge=0, le=1, description="share of steps on the student's own samples (GKD's lambda)")


DISTILL_ROWS: Listing[AlgorithmRow] = Listing("posttrain.algorithms.distill", "ROWS", typed(DistillRunConfig))
