"""MiniLLM: the reverse KL, on the student's samples."""

from __future__ import annotations

from torch import Tensor

from posttrain.algorithms.divergence import Divergence
from posttrain.algorithms.objective import AlgorithmRow
from posttrain.formulas.distill import kl, log_probs
from posttrain.settings.choices import Options


def reverse_kl(student_NV: Tensor, teacher_NV: Tensor, temperature: float = 1.0) -> Tensor:
    """KL(student || teacher) = sum_v q (log q - log p): seeks a mode of the teacher (MiniLLM, Gu 2023)."""
    log_q, log_p = log_probs(student_NV, temperature), log_probs(teacher_NV, temperature)
    return kl(log_q, log_p)


def _reverse_kl(student_NV: Tensor, teacher_NV: Tensor, temperature: float, _: Options) -> Tensor:
    return reverse_kl(student_NV, teacher_NV, temperature)


DIVERGENCES = {"reverse_kl": Divergence(Options, _reverse_kl, "KL(student || teacher)")}
ROWS = {
    "reverse_kl": AlgorithmRow(
        "Gu 2023 (MiniLLM), arXiv:2306.08543",
        "mean_tokens KL(student || teacher) on own samples",
        {"divergence": "reverse_kl", "own": 1.0},
    ),
}
