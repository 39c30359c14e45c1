"""KTO: single answers with labels, compared with the KL of mismatched answers."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import sigmoid

from posttrain.algorithms.objective import AlgorithmRow
from posttrain.algorithms.preference_loss import UnaryLoss, UnpairedOptions, label_weight, signed


def kto(r: Tensor, label: Tensor, z0: Tensor, beta: float, desirable: float = 1.0, undesirable: float = 1.0) -> Tensor:
    """lambda_D (1 - sigmoid(beta (r - z0))) or lambda_U (1 - sigmoid(beta (z0 - r))) (Ethayarajh 2024)."""
    gain = signed(r - z0, label)
    return label_weight(gain, label, desirable, undesirable) * sigmoid(-beta * gain)


LOSSES = {
    "kto": UnaryLoss(
        UnpairedOptions,
        lambda r, label, z0, k: kto(r, label, z0, k.beta, k.desirable, k.undesirable),
        "lambda_D (1 - sigmoid(beta (r - z0))) | lambda_U (1 - sigmoid(beta (z0 - r)))",
        "mismatched",
    ),
}
ROWS = {
    "kto": AlgorithmRow(
        "Ethayarajh 2024, arXiv:2402.01306",
        "lambda_D (1 - sigmoid(beta (r - z0))) | lambda_U (1 - sigmoid(beta (z0 - r)))",
        {"loss": "kto"},
    ),
}
