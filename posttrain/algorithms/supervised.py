"""The SFT objective, the distillation objective, and the table of distillation algorithms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from posttrain.algorithms.objective import AlgorithmRow, Loss, Objective, Prepared, State, algorithm_table
from posttrain.formulas import distill
from posttrain.formulas.ragged import Ragged, sequence_mean, token_mean
from posttrain.params.choices import OneOf, Option, Options
from posttrain.params.params import Params
from posttrain.params.renames import DISTILL, keys

Aggregation = Literal["token_mean", "sequence_mean"]


class LikelihoodConfig(Params):
    """How the tokens' losses are averaged."""

    aggregation: Aggregation = Field("token_mean", description="token or sequence mean")


@dataclass(frozen=True)
class LikelihoodObjective(Objective):
    """-mean log p(token): pretraining and SFT."""

    knobs: LikelihoodConfig

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"entropy"})

    @property
    def by_token(self) -> bool:
        return True

    @torch.no_grad()
    def prepare(self, step: Ragged, state: State) -> Prepared:
        """1 / tokens, or 1 / (rows * tokens of the row), on each token."""
        return _with_weights(step, state, self.knobs.aggregation)

    def loss(self, micro: Ragged, state: State) -> Loss:  # noqa: ARG002
        """-sum of weight * logp."""
        entropy = micro.tokens["entropy"].detach()
        mean_N = micro.tokens["token_mean_weight"].to(entropy.dtype)
        return Loss(-_weighted_sum(micro, micro.tokens["logp"]), {"entropy": (mean_N * entropy).sum()})


class JensenShannonOptions(Options):
    """The mixture of teacher and student."""

    beta: float = Field(0.5, gt=0, lt=1, description="weight of the teacher in the mixture m")


DIVERGENCE: OneOf[Option] = OneOf(
    {
        "forward_kl": Option(Options, "KL(teacher || student)"),
        "reverse_kl": Option(Options, "KL(student || teacher)"),
        "jensen_shannon": Option(JensenShannonOptions, "beta KL(teacher || m) + (1 - beta) KL(student || m) (GKD)"),
    },
    "forward_kl",
)


class DistillConfig(Params):
    """The divergence from the teacher, and how the tokens' losses are averaged."""

    renamed: ClassVar[Mapping[str, str]] = keys(DISTILL)
    divergence: Annotated[Options, DIVERGENCE] = Field(
        DIVERGENCE.chosen, description="the divergence from the teacher that is minimised"
    )
    temperature: float = Field(1.0, gt=0, description="of both distributions")
    aggregation: Aggregation = Field("token_mean", description="token or sequence mean")

    def formula(self) -> distill.Divergence:
        """The divergence as a function of (student logits, teacher logits), which makes the column `teacher_kl`."""
        chosen = self.divergence
        if isinstance(chosen, JensenShannonOptions):
            return lambda student, teacher: distill.jensen_shannon(student, teacher, chosen.beta, self.temperature)
        rule = distill.forward_kl if chosen.type == "forward_kl" else distill.reverse_kl
        return lambda student, teacher: rule(student, teacher, self.temperature)


@dataclass(frozen=True)
class DistillObjective(Objective):
    """mean of the divergence from a teacher on demonstrations or own samples (GKD, Agarwal 2023).

    Context distillation (Askell 2021) is the same with a teacher that sees another prompt.
    """

    knobs: DistillConfig

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"teacher_kl"})

    @torch.no_grad()
    def prepare(self, step: Ragged, state: State) -> Prepared:
        """1 / tokens, or 1 / (rows * tokens of the row), on each token."""
        return _with_weights(step, state, self.knobs.aggregation)

    def loss(self, micro: Ragged, state: State) -> Loss:  # noqa: ARG002
        """sum of weight * divergence."""
        divergence = micro.tokens["teacher_kl"]
        mean_N = micro.tokens["token_mean_weight"].to(divergence.dtype)
        return Loss(_weighted_sum(micro, divergence), {"teacher_kl": (mean_N * divergence.detach()).sum()})


def _with_weights(step: Ragged, state: State, aggregation: Aggregation) -> Prepared:
    kept_B = (step.lengths_B > 0).double()
    rule = token_mean if aggregation == "token_mean" else sequence_mean
    weight_N, token_mean_N = rule(step.lengths_B, kept_B), token_mean(step.lengths_B, kept_B)
    metrics = {"length": float(step.lengths_B.float().mean())}
    return Prepared(step.with_tokens(weight=weight_N, token_mean_weight=token_mean_N), dict(state), metrics)


def _weighted_sum(micro: Ragged, values_N: Tensor) -> Tensor:
    dtype = torch.promote_types(values_N.dtype, torch.float32)
    return (micro.tokens["weight"].to(dtype) * values_N.to(dtype)).sum()


class DistillRunConfig(DistillConfig):
    """A divergence, and which answers it is computed on."""

    own: float = Field(1.0, ge=0, le=1, description="fraction of the steps on the student's own samples (GKD's lambda)")
    context: str | None = Field(None, min_length=1, description="a system turn that only the teacher gets")

    @model_validator(mode="after")
    def _context_is_text(self) -> DistillRunConfig:
        if self.context is not None and not self.context.strip():
            raise ValueError("context is blank. Give the system turn's text, or null")
        return self


DISTILL_ROWS: dict[str, AlgorithmRow] = algorithm_table(
    DistillRunConfig,
    (
        AlgorithmRow(
            "distill",
            "Hinton 2015, arXiv:1503.02531",
            "mean_tokens KL(teacher || student) on demonstrations",
            {"divergence": "forward_kl", "own": 0.0},
        ),
        AlgorithmRow(
            "gkd",
            "Agarwal 2023, arXiv:2306.13649",
            "mean_tokens [beta KL(p || m) + (1 - beta) KL(q || m)], half of the steps on own samples",
            {"divergence": "jensen_shannon", "own": 0.5},
        ),
        AlgorithmRow(
            "reverse_kl",
            "Gu 2023 (MiniLLM), arXiv:2306.08543",
            "mean_tokens KL(student || teacher) on own samples",
            {"divergence": "reverse_kl", "own": 1.0},
        ),
        AlgorithmRow(
            "context_distill",
            "Askell 2021, arXiv:2112.00861",
            "mean_tokens KL(teacher given a context || student without it) on own samples",
            {"divergence": "forward_kl", "own": 1.0},
        ),
    ),
)
