"""GKD: the Jensen-Shannon divergence, half on the student's samples."""

from __future__ import annotations

import math

import torch
from pydantic import Field
from torch import Tensor

from posttrain.algorithms.divergence import Divergence
from posttrain.algorithms.objective import AlgorithmRow
from posttrain.formulas.distill import kl, log_probs
from posttrain.settings.choices import Options


class JensenShannonOptions(Options):
    """The mixture of teacher and student."""

    beta: float = Field(0.5, gt=0, lt=1, description="weight of the teacher in the mixture m")


def jensen_shannon(student_NV: Tensor, teacher_NV: Tensor, beta: float = 0.5, temperature: float = 1.0) -> Tensor:
    """beta KL(p || m) + (1 - beta) KL(q || m), m = beta p + (1 - beta) q, p the teacher (GKD, Agarwal 2023)."""
    if not 0 < beta < 1:
        raise ValueError(f"beta = {beta}: the mixture needs 0 < beta < 1. The limits are forward_kl and reverse_kl")
    log_q, log_p = log_probs(student_NV, temperature), log_probs(teacher_NV, temperature)
    log_m = torch.logaddexp(log_p + math.log(beta), log_q + math.log1p(-beta))
    return beta * kl(log_p, log_m) + (1 - beta) * kl(log_q, log_m)


def _jensen_shannon(
    student_NV: Tensor, teacher_NV: Tensor, temperature: float, options: JensenShannonOptions
) -> Tensor:
    return jensen_shannon(student_NV, teacher_NV, options.beta, temperature)


DIVERGENCES = {
    "jensen_shannon": Divergence(
        JensenShannonOptions, _jensen_shannon, "beta KL(teacher || m) + (1 - beta) KL(student || m) (GKD)"
    )
}
ROWS = {
    "gkd": AlgorithmRow(
        "Agarwal 2023, arXiv:2306.13649",
        "mean_tokens [beta KL(p || m) + (1 - beta) KL(q || m)], half of the steps on own samples",
        {"divergence": "jensen_shannon", "own": 0.5},
    ),
}
