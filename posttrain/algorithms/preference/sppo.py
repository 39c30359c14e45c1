"""SPPO: pull each answer's log-ratio towards its win rate, which is 1 or 0 for a pair."""

from __future__ import annotations

from torch import Tensor

from posttrain.algorithms.objective import AlgorithmRow
from posttrain.algorithms.preference_loss import BetaOptions, PairLoss


def sppo(h: Tensor, l: Tensor, beta: float) -> Tensor:
    """(h - 1 / (2 beta))^2 + (l + 1 / (2 beta))^2 (Wu 2024, with win rates of 1 and 0)."""
    return (h - 1 / (2 * beta)).square() + (l + 1 / (2 * beta)).square()


FORMULA = "(h - 1 / (2 beta))^2 + (l + 1 / (2 beta))^2"
LOSSES = {"sppo": PairLoss(BetaOptions, lambda h, low, k: sppo(h, low, k.beta), FORMULA, balanced=False)}
ROWS = {"sppo": AlgorithmRow("Wu 2024, arXiv:2405.00675", FORMULA, {"loss": "sppo"})}
