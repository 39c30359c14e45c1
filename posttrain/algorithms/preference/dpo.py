"""DPO and variants: the log-odds of the chosen answer over the rejected answer, relative to a reference."""

from __future__ import annotations

from pydantic import Field
from torch import Tensor
from torch.nn.functional import logsigmoid

from posttrain.algorithms.objective import AlgorithmRow
from posttrain.algorithms.preference_loss import BetaOptions, PairLoss

DPO = "dpo"
"""The default loss."""


class DpoOptions(BetaOptions):
    """Label smoothing (cDPO)."""

    label_smoothing: float = Field(0.0, ge=0, lt=0.5, description="assumed fraction of wrong labels")


def dpo(h: Tensor, l: Tensor, beta: float, label_smoothing: float = 0.0) -> Tensor:
    """-(1 - s) logsigmoid(beta (h - l)) - s logsigmoid(-beta (h - l)) (Rafailov 2023; s > 0 is cDPO, Mitchell 2023)."""
    margin = beta * (h - l)
    return -(1 - label_smoothing) * logsigmoid(margin) - label_smoothing * logsigmoid(-margin)


LOSSES = {
    "dpo": PairLoss(
        DpoOptions,
        lambda h, low, k: dpo(h, low, k.beta, k.label_smoothing),
        "-(1 - s) logsigmoid(beta (h - l)) - s logsigmoid(-beta (h - l))",
    ),
}
ROWS = {
    "dpo": AlgorithmRow("Rafailov 2023, arXiv:2305.18290", "-logsigmoid(beta (h - l))", {"loss": "dpo"}),
    "cdpo": AlgorithmRow(
        "Mitchell 2023, ericmitchell.ai/cdpo.pdf",
        "-(1 - s) logsigmoid(beta (h - l)) - s logsigmoid(-beta (h - l))",
        {"loss": {"type": "dpo", "label_smoothing": 0.1}},
    ),
    "sdpo": AlgorithmRow(
        "Kim 2024, arXiv:2403.19270",
        "-logsigmoid(beta (h - l)), the reference of each part of the data is the policy before it",
        {"loss": "dpo", "parts": 2},
    ),
    "cpo": AlgorithmRow(
        "Xu 2024, arXiv:2401.08417",
        "-logsigmoid(beta (logp_c - logp_r)) + NLL(chosen)",
        {"loss": "dpo", "reference": False, "nll": 1.0},
    ),
}
