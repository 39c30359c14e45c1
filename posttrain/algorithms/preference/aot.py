"""AOT: sort the log-ratios of a whole step on each side, and compare values of equal rank."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from posttrain.algorithms.objective import AlgorithmRow
from posttrain.algorithms.preference_loss import BetaOptions, PairLoss


def aot(more: Tensor, less: Tensor, beta: float) -> Tensor:
    """-logsigmoid(beta (more - less)) (Melnyk 2024)."""
    return -logsigmoid(beta * (more - less))


def of_same_rank(values: Tensor, others: Tensor) -> Tensor:
    """Return, for each value, the value in `others` with the same rank: the optimal transport for a convex cost."""
    return torch.empty_like(others).scatter(0, values.argsort(stable=True), others.sort().values)


def by_margin(h: Tensor, l: Tensor, ref_margin: Tensor) -> tuple[Tensor, Tensor]:
    """Compare the policy's margins, logp_c - logp_r, with the reference's margins of equal rank."""
    shift = ref_margin - of_same_rank(h - l + ref_margin, ref_margin)
    return l - shift, h + shift


def by_side(h: Tensor, l: Tensor, ref_margin: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    """Compare each chosen answer with the rejected answer of equal rank, from any prompt."""
    return of_same_rank(h, l), of_same_rank(l, h)


MARGINS = "-logsigmoid(beta (m - m')), m = logp_c - logp_r, m' the reference's margin of the same rank"
SIDES = "-logsigmoid(beta (h - l')), l' the rejected answer's of the same rank"
LOSSES = {
    "aot": PairLoss(BetaOptions, lambda h, low, k: aot(h, low, k.beta), MARGINS, match=by_margin),
    "aot_unpaired": PairLoss(BetaOptions, lambda h, low, k: aot(h, low, k.beta), SIDES, balanced=False, match=by_side),
}
PAPER = "Melnyk 2024, arXiv:2406.05882"
ROWS = {
    "aot": AlgorithmRow(PAPER, MARGINS, {"loss": "aot"}),
    "aot_unpaired": AlgorithmRow(PAPER, SIDES, {"loss": "aot_unpaired"}),
}
