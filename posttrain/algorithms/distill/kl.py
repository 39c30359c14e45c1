"""Distillation by the KL from the teacher, on demonstrations or on samples with extra context for the teacher."""

from __future__ import annotations

from torch import Tensor

from posttrain.algorithms.divergence import Divergence
from posttrain.algorithms.objective import AlgorithmRow
from posttrain.formulas.distill import forward_kl
from posttrain.settings.choices import Options

FORWARD = "forward_kl"
"""The default divergence."""


def _forward_kl(student_NV: Tensor, teacher_NV: Tensor, temperature: float, _: Options) -> Tensor:
    return forward_kl(student_NV, teacher_NV, temperature)


DIVERGENCES = {"forward_kl": Divergence(Options, _forward_kl, "KL(teacher || student)")}
ROWS = {
    "distill": AlgorithmRow(
        "Hinton 2015, arXiv:1503.02531",
        "mean_tokens KL(teacher || student) on demonstrations",
        {"divergence": "forward_kl", "own": 0.0},
    ),
    "context_distill": AlgorithmRow(
        "Askell 2021, arXiv:2112.00861",
        "mean_tokens KL(teacher given a context || student without it) on own samples",
        {"divergence": "forward_kl", "own": 1.0},
    ),
}
