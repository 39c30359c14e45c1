"""SimPO: mean log-probs without a reference, with a margin."""

from __future__ import annotations

from pydantic import Field
from torch import Tensor
from torch.nn.functional import logsigmoid

from posttrain.algorithms.objective import AlgorithmRow
from posttrain.algorithms.preference_loss import PairLoss
from posttrain.settings.choices import Options


class SimpoOptions(Options):
    """A temperature for mean log-probs, and a margin."""

    beta: float = Field(2.0, gt=0, description="inverse temperature of the implicit reward")
    gamma: float = Field(1.0, ge=0, description="margin that beta (h - l) must exceed")


def simpo(h: Tensor, l: Tensor, beta: float, gamma: float) -> Tensor:
    """-logsigmoid(beta (h - l) - gamma) on mean log-probs (Meng 2024)."""
    return -logsigmoid(beta * (h - l) - gamma)


LOSSES = {
    "simpo": PairLoss(
        SimpoOptions, lambda h, low, k: simpo(h, low, k.beta, k.gamma), "-logsigmoid(beta (h - l) - gamma)"
    ),
}
ROWS = {
    "simpo": AlgorithmRow(
        "Meng 2024, arXiv:2405.14734",
        "-logsigmoid(beta (logp_c - logp_r) - gamma), means over tokens",
        {"loss": "simpo", "reference": False, "reduce": "mean"},
    ),
}
