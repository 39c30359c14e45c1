"""Robust DPO: an estimate of DPO's loss without bias from wrong labels."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import logsigmoid

from posttrain.algorithms.objective import AlgorithmRow
from posttrain.algorithms.preference.dpo import DpoOptions
from posttrain.algorithms.preference_loss import PairLoss


def robust_dpo(h: Tensor, l: Tensor, beta: float, label_smoothing: float) -> Tensor:
    """(-(1 - s) logsigmoid(m) + s logsigmoid(-m)) / (1 - 2 s), m = beta (h - l): flips cancel (Chowdhury 2024)."""
    margin = beta * (h - l)
    flipped = (1 - label_smoothing) * logsigmoid(margin) - label_smoothing * logsigmoid(-margin)
    return -flipped / (1 - 2 * label_smoothing)


LOSSES = {
    "robust_dpo": PairLoss(
        DpoOptions,
        lambda h, low, k: robust_dpo(h, low, k.beta, k.label_smoothing),
        "(-(1 - s) logsigmoid(m) + s logsigmoid(-m)) / (1 - 2 s), m = beta (h - l)",
    ),
}
ROWS = {
    "robust_dpo": AlgorithmRow(
        "Chowdhury 2024, arXiv:2403.00409",
        "(-(1 - s) logsigmoid(m) + s logsigmoid(-m)) / (1 - 2 s), m = beta (h - l)",
        {"loss": {"type": "robust_dpo", "label_smoothing": 0.1}},
    ),
}
