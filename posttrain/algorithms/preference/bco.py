"""BCO: a classifier of single answers with the running mean of their rewards as threshold."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import logsigmoid

from posttrain.algorithms.objective import AlgorithmRow
from posttrain.algorithms.preference_loss import UnaryLoss, UnpairedOptions, label_weight, signed


def bco(
    r: Tensor, label: Tensor, shift: Tensor, beta: float, desirable: float = 1.0, undesirable: float = 1.0
) -> Tensor:
    """lambda_D -logsigmoid(beta (r - shift)) or lambda_U -logsigmoid(-beta (r - shift)) (Jung 2024)."""
    gain = signed(r - shift, label)
    return -label_weight(gain, label, desirable, undesirable) * logsigmoid(beta * gain)


LOSSES = {
    "bco": UnaryLoss(
        UnpairedOptions,
        lambda r, label, shift, k: bco(r, label, shift, k.beta, k.desirable, k.undesirable),
        "lambda_D -logsigmoid(beta (r - s)) | lambda_U -logsigmoid(-beta (r - s))",
        "running",
    ),
}
ROWS = {
    "bco": AlgorithmRow(
        "Jung 2024, arXiv:2404.04656",
        "-logsigmoid(beta (r - s)) | -logsigmoid(-beta (r - s)), s the running mean of r",
        {"loss": "bco"},
    ),
}
