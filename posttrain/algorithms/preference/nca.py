"""NCA: noise contrastive alignment, which keeps up the likelihood of the chosen answer."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import logsigmoid

from posttrain.algorithms.objective import AlgorithmRow
from posttrain.algorithms.preference_loss import BetaOptions, PairLoss


def nca(h: Tensor, l: Tensor, beta: float) -> Tensor:
    """-logsigmoid(beta h) - (logsigmoid(-beta h) + logsigmoid(-beta l)) / 2 (Chen 2024)."""
    return -logsigmoid(beta * h) - 0.5 * (logsigmoid(-beta * h) + logsigmoid(-beta * l))


FORMULA = "-logsigmoid(beta h) - (logsigmoid(-beta h) + logsigmoid(-beta l)) / 2"
LOSSES = {"nca": PairLoss(BetaOptions, lambda h, low, k: nca(h, low, k.beta), FORMULA, balanced=False)}
ROWS = {"nca": AlgorithmRow("Chen 2024, arXiv:2402.05369", FORMULA, {"loss": "nca"})}
