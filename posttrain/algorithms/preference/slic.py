"""SLiC and RRHF: a hinge on log-probs, with the likelihood of the chosen answer."""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from posttrain.algorithms.objective import AlgorithmRow
from posttrain.algorithms.preference_loss import PairLoss
from posttrain.params.choices import Options


class SlicOptions(Options):
    """A margin without a temperature."""

    delta: float = Field(1.0, ge=0, description="by how much h - l must win")


def slic(h: Tensor, l: Tensor, delta: float) -> Tensor:
    """max(0, delta - (h - l)) (SLiC-HF, Zhao 2023)."""
    return (delta - (h - l)).clamp(min=0)  # unlike relu it has a slope at 0: of equal answers the chosen one gains


LOSSES = {
    "slic": PairLoss(SlicOptions, lambda h, low, k: slic(h, low, k.delta), "max(0, delta - (h - l))"),
}
ROWS = {
    "slic": AlgorithmRow(
        "Zhao 2023, arXiv:2305.10425",
        "max(0, delta - (logp_c - logp_r)) + lambda NLL(chosen)",
        {"loss": "slic", "reference": False, "nll": 0.1},
    ),
    "rrhf": AlgorithmRow(
        "Yuan 2023, arXiv:2304.05302",
        "max(0, logp_r - logp_c) + NLL(chosen), means over tokens, of the pairs that ranks make",
        {"loss": {"type": "slic", "delta": 0.0}, "reference": False, "reduce": "mean", "nll": 1.0},
    ),
}
