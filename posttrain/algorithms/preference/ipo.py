"""IPO: pull the difference of log-ratios towards a constant."""

from __future__ import annotations

from torch import Tensor

from posttrain.algorithms.objective import AlgorithmRow
from posttrain.algorithms.preference_loss import BetaOptions, PairLoss


def ipo(h: Tensor, l: Tensor, beta: float) -> Tensor:
    """(h - l - 1 / (2 beta))^2 (Azar 2023)."""
    return (h - l - 1 / (2 * beta)).square()


LOSSES = {
    "ipo": PairLoss(BetaOptions, lambda h, low, k: ipo(h, low, k.beta), "(h - l - 1 / (2 beta))^2"),
}
ROWS = {
    "ipo": AlgorithmRow(
        "Azar 2023, arXiv:2310.12036", "(h - l - 1 / (2 beta))^2, means over tokens", {"loss": "ipo", "reduce": "mean"}
    ),
}
