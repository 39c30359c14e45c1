"""SLiC: a hinge on log-probs, with the likelihood of the chosen answer."""

from __future__ import annotations

from pydantic import Field
from torch import Tensor
from torch.nn.functional import relu

from posttrain.algorithms.objective import AlgorithmRow
from posttrain.algorithms.preference_loss import PairLoss
from posttrain.settings.choices import Options


class SlicOptions(Options):
    """A margin without a temperature."""

    delta: float = Field(1.0, gt=0, description="margin that h - l must exceed")


def slic(h: Tensor, l: Tensor, delta: float) -> Tensor:
    """max(0, delta - (h - l)) (SLiC-HF, Zhao 2023)."""
    return relu(delta - (h - l))


LOSSES = {
    "slic": PairLoss(SlicOptions, lambda h, low, k: slic(h, low, k.delta), "max(0, delta - (h - l))"),
}
ROWS = {
    "slic": AlgorithmRow(
        "Zhao 2023, arXiv:2305.10425",
        "max(0, delta - (logp_c - logp_r)) + lambda NLL(chosen)",
        {"loss": "slic", "reference": False, "nll": 0.1},
    ),
}
