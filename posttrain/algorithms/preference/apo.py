"""APO: anchored losses, which decide whether the chosen answer should become likelier."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import sigmoid

from posttrain.algorithms.objective import AlgorithmRow
from posttrain.algorithms.preference_loss import BetaOptions, PairLoss


def apo_zero(h: Tensor, l: Tensor, beta: float) -> Tensor:
    """1 - sigmoid(beta h) + sigmoid(beta l): chosen up, rejected down (D'Oosterlinck 2024)."""
    return sigmoid(-beta * h) + sigmoid(beta * l)


def apo_down(h: Tensor, l: Tensor, beta: float) -> Tensor:
    """sigmoid(beta h) + 1 - sigmoid(beta (h - l)): both down, rejected more (D'Oosterlinck 2024)."""
    return sigmoid(beta * h) + sigmoid(-beta * (h - l))


LOSSES = {
    "apo_zero": PairLoss(
        BetaOptions, lambda h, low, k: apo_zero(h, low, k.beta), "1 - sigmoid(beta h) + sigmoid(beta l)"
    ),
    "apo_down": PairLoss(
        BetaOptions,
        lambda h, low, k: apo_down(h, low, k.beta),
        "sigmoid(beta h) + 1 - sigmoid(beta (h - l))",
        balanced=False,
    ),
}
ROWS = {
    "apo_zero": AlgorithmRow(
        "D'Oosterlinck 2024, arXiv:2408.06266", "1 - sigmoid(beta h) + sigmoid(beta l)", {"loss": "apo_zero"}
    ),
    "apo_down": AlgorithmRow(
        "D'Oosterlinck 2024, arXiv:2408.06266", "sigmoid(beta h) + 1 - sigmoid(beta (h - l))", {"loss": "apo_down"}
    ),
}
