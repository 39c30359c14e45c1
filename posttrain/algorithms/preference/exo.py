"""EXO: the reverse KL from the policy's preference to the labels."""

from __future__ import annotations

import math

from pydantic import Field
from torch import Tensor
from torch.nn.functional import logsigmoid

from posttrain.algorithms.objective import AlgorithmRow
from posttrain.algorithms.preference_loss import BetaOptions, PairLoss


class ExoOptions(BetaOptions):
    """Label smoothing, which EXO needs."""

    label_smoothing: float = Field(
        1e-3, gt=0, lt=0.5, description="assumed fraction of wrong labels, above 0 because KL(p || q) needs it"
    )


def exo(h: Tensor, l: Tensor, beta: float, label_smoothing: float) -> Tensor:
    """KL(p || q) of p = (sigmoid(m), sigmoid(-m)), q = (1 - s, s), m = beta (h - l) (EXO on pairs, Ji 2024)."""
    margin = beta * (h - l)
    won, lost = logsigmoid(margin), logsigmoid(-margin)
    return won.exp() * (won - math.log1p(-label_smoothing)) + lost.exp() * (lost - math.log(label_smoothing))


LOSSES = {
    "exo": PairLoss(
        ExoOptions,
        lambda h, low, k: exo(h, low, k.beta, k.label_smoothing),
        "KL((sigmoid(m), sigmoid(-m)) || (1 - s, s)), m = beta (h - l)",
    ),
}
ROWS = {
    "exo": AlgorithmRow(
        "Ji 2024, arXiv:2402.00856", "KL((sigmoid(m), sigmoid(-m)) || (1 - s, s)), m = beta (h - l)", {"loss": "exo"}
    ),
}
