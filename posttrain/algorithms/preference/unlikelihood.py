"""Unlikelihood: the chosen answer is learned, and the rejected one is made less likely by itself."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from posttrain.algorithms.objective import AlgorithmRow
from posttrain.algorithms.preference.orpo import NEAR_ZERO
from posttrain.algorithms.preference_loss import PairLoss
from posttrain.params.choices import Options


class UnlikelihoodOptions(Options):
    """The weight of what is unlearned."""

    alpha: float = Field(1.0, gt=0, description="weight of the rejected answer")


def unlikelihood(l: Tensor, alpha: float) -> Tensor:
    """-alpha log(1 - exp(l)) of the rejected answer's mean log-prob (Welleck 2019, of a whole answer)."""
    return -alpha * torch.log(-torch.expm1(l.clamp(max=NEAR_ZERO)))


FORMULA = "-alpha log(1 - exp(l))"
LOSSES = {
    "unlikelihood": PairLoss(UnlikelihoodOptions, lambda _, low, k: unlikelihood(low, k.alpha), FORMULA, balanced=False)
}
ROWS = {
    "unlikelihood": AlgorithmRow(
        "Welleck 2019, arXiv:1908.04319",
        "NLL(chosen) - alpha log(1 - exp(l)), l the mean logp of the rejected answer",
        {"loss": "unlikelihood", "reference": False, "reduce": "mean", "nll": 1.0},
    ),
}
