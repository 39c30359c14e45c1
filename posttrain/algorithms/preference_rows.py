"""The tables of preference objectives: losses that name formulas, and rows that name losses and knobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field, model_validator
from torch import Tensor

from posttrain.algorithms.row import Readers, Row, ignored
from posttrain.formulas import preference as f
from posttrain.params import Params

LossName = Literal[
    "dpo", "robust_dpo", "exo", "ipo", "apo_zero", "apo_down", "slic", "simpo", "orpo", "kto", "bco"
]  # fmt: skip


class PreferenceKnobs(Params):
    """Everything that tells one preference objective from another."""

    loss: LossName = Field("dpo", description="the loss per item")
    reference: bool = Field(True, description="whether log-probs are taken relative to the reference policy")
    reduce: Literal["sum", "mean"] = Field("sum", description="over an answer's tokens")
    beta: float = Field(0.1, gt=0, description="inverse temperature of the implicit reward (orpo: weight of the odds)")
    label_smoothing: float = Field(0.0, ge=0, lt=0.5, description="share of labels taken to be flipped")
    gamma: float = Field(1.0, ge=0, description="simpo: by how much beta (h - l) must win")
    delta: float = Field(1.0, gt=0, description="slic: by how much h - l must win")
    desirable: float = Field(1.0, ge=0, description="weight of desirable answers")
    undesirable: float = Field(1.0, ge=0, description="weight of undesirable answers")
    nll: float = Field(0.0, ge=0, description="weight of the chosen answers' mean negative log-likelihood")
    parts: int = Field(
        1, ge=1, description="sDPO: cut the data so often, each part's reference is the policy before it"
    )
    experimental: bool = Field(False, description="allow combinations that the definitions refuse")

    @model_validator(mode="after")
    def _meaningful(self) -> PreferenceKnobs:
        wrong = ignored(self, READERS)
        refused = refusal(self)
        if refused and not self.experimental:
            wrong.append(f"{refused}, or experimental: true")
        if wrong:
            raise ValueError("; ".join(wrong))
        return self


@dataclass(frozen=True)
class PairLoss:
    """A formula on (h, l) and the knobs that it reads."""

    formula: Callable[[Tensor, Tensor, PreferenceKnobs], Tensor]
    reads: frozenset[str]


@dataclass(frozen=True)
class UnaryLoss:
    """A formula on (r, label, shift), the knobs that it reads, and how the shift is had."""

    formula: Callable[[Tensor, Tensor, Tensor, PreferenceKnobs], Tensor]
    reads: frozenset[str]
    shift: Literal["mismatched", "running"]


PAIR_LOSSES: Mapping[str, PairLoss] = {
    "dpo": PairLoss(lambda h, low, k: f.dpo(h, low, k.beta, k.label_smoothing), frozenset({"beta", "label_smoothing"})),
    "robust_dpo": PairLoss(
        lambda h, low, k: f.robust_dpo(h, low, k.beta, k.label_smoothing), frozenset({"beta", "label_smoothing"})
    ),
    "exo": PairLoss(lambda h, low, k: f.exo(h, low, k.beta, k.label_smoothing), frozenset({"beta", "label_smoothing"})),
    "ipo": PairLoss(lambda h, low, k: f.ipo(h, low, k.beta), frozenset({"beta"})),
    "apo_zero": PairLoss(lambda h, low, k: f.apo_zero(h, low, k.beta), frozenset({"beta"})),
    "apo_down": PairLoss(lambda h, low, k: f.apo_down(h, low, k.beta), frozenset({"beta"})),
    "slic": PairLoss(lambda h, low, k: f.slic(h, low, k.delta), frozenset({"delta"})),
    "simpo": PairLoss(lambda h, low, k: f.simpo(h, low, k.beta, k.gamma), frozenset({"beta", "gamma"})),
    "orpo": PairLoss(lambda h, low, k: f.orpo(h, low, k.beta), frozenset({"beta"})),
}

_PRICED = frozenset({"beta", "desirable", "undesirable"})

UNARY_LOSSES: Mapping[str, UnaryLoss] = {
    "kto": UnaryLoss(
        lambda r, label, z0, k: f.kto(r, label, z0, k.beta, k.desirable, k.undesirable), _PRICED, "mismatched"
    ),
    "bco": UnaryLoss(
        lambda r, label, shift, k: f.bco(r, label, shift, k.beta, k.desirable, k.undesirable), _PRICED, "running"
    ),
}

FEEDBACK = frozenset(UNARY_LOSSES)
"""Losses whose table is `feedback` (unpaired) instead of `pairs`."""

_READS = {name: loss.reads for name, loss in PAIR_LOSSES.items()} | {n: loss.reads for n, loss in UNARY_LOSSES.items()}

READERS: Readers = {
    knob: ("loss", frozenset(name for name, reads in _READS.items() if knob in reads))
    for knob in sorted(frozenset().union(*_READS.values()))
}
"""Which losses read a knob; setting one that the loss does not read is an error, never ignored."""


def refusal(knobs: PreferenceKnobs) -> str | None:
    """Why a combination that is typed right means nothing, with the fix; None when it means something."""
    if knobs.loss == "orpo" and (knobs.reference or knobs.reduce != "mean"):
        return "orpo takes the odds of an answer's mean probability. Use reference false and reduce mean"
    if knobs.loss in FEEDBACK and not knobs.reference:
        return (
            f"{knobs.loss} compares an answer's shift from the reference with the shift elsewhere. Use reference true"
        )
    if knobs.loss == "exo" and knobs.label_smoothing == 0:
        return "exo takes KL(p || q) against labels q, which are never 0 or 1. Use label_smoothing above 0, e.g. 0.001"
    if knobs.parts > 1 and not knobs.reference:
        return "parts renews the reference, and there is none. Use parts 1, or reference true"
    return None


@dataclass(frozen=True)
class PreferenceRow(Row[PreferenceKnobs]):
    """One preference objective."""

    def laid(self, over: Mapping[str, Any]) -> dict[str, Any]:
        """The row's knobs as plain data with some replaced, before they are typed."""
        return self.lay(PreferenceKnobs, READERS, over)

    def settings(self, **over: Any) -> PreferenceKnobs:
        """The row's knobs with some replaced."""
        return PreferenceKnobs.model_validate(self.laid(over))


PREFERENCE_ROWS: dict[str, PreferenceRow] = {
    row.name: row
    for row in (
        PreferenceRow("dpo", "Rafailov 2023, arXiv:2305.18290", "-logsigmoid(beta (h - l))", {"loss": "dpo"}),
        PreferenceRow(
            "cdpo",
            "Mitchell 2023, ericmitchell.ai/cdpo.pdf",
            "-(1 - s) logsigmoid(beta (h - l)) - s logsigmoid(-beta (h - l))",
            {"loss": "dpo", "label_smoothing": 0.1},
        ),
        PreferenceRow(
            "robust_dpo",
            "Chowdhury 2024, arXiv:2403.00409",
            "(-(1 - s) logsigmoid(m) + s logsigmoid(-m)) / (1 - 2 s), m = beta (h - l)",
            {"loss": "robust_dpo", "label_smoothing": 0.1},
        ),
        PreferenceRow(
            "sdpo",
            "Kim 2024, arXiv:2403.19270",
            "-logsigmoid(beta (h - l)), the reference of each part of the data is the policy before it",
            {"loss": "dpo", "parts": 2},
        ),
        PreferenceRow(
            "exo",
            "Ji 2024, arXiv:2402.00856",
            "KL((sigmoid(m), sigmoid(-m)) || (1 - s, s)), m = beta (h - l)",
            {"loss": "exo", "label_smoothing": 1e-3},
        ),
        PreferenceRow(
            "ipo",
            "Azar 2023, arXiv:2310.12036",
            "(h - l - 1 / (2 beta))^2, means over tokens",
            {"loss": "ipo", "reduce": "mean"},
        ),
        PreferenceRow(
            "apo_zero",
            "D'Oosterlinck 2024, arXiv:2408.06266",
            "1 - sigmoid(beta h) + sigmoid(beta l)",
            {"loss": "apo_zero"},
        ),
        PreferenceRow(
            "apo_down",
            "D'Oosterlinck 2024, arXiv:2408.06266",
            "sigmoid(beta h) + 1 - sigmoid(beta (h - l))",
            {"loss": "apo_down"},
        ),
        PreferenceRow(
            "slic",
            "Zhao 2023, arXiv:2305.10425",
            "max(0, delta - (logp_c - logp_r)) + lambda NLL(chosen)",
            {"loss": "slic", "reference": False, "nll": 0.1},
        ),
        PreferenceRow(
            "cpo",
            "Xu 2024, arXiv:2401.08417",
            "-logsigmoid(beta (logp_c - logp_r)) + NLL(chosen)",
            {"loss": "dpo", "reference": False, "nll": 1.0},
        ),
        PreferenceRow(
            "simpo",
            "Meng 2024, arXiv:2405.14734",
            "-logsigmoid(beta (logp_c - logp_r) - gamma), means over tokens",
            {"loss": "simpo", "reference": False, "reduce": "mean", "beta": 2.0, "gamma": 1.0},
        ),
        PreferenceRow(
            "orpo",
            "Hong 2024, arXiv:2403.07691",
            "NLL(chosen) + lambda * -logsigmoid(logodds_c - logodds_r), logodds = m - log1mexp(m), m the mean logp",
            {"loss": "orpo", "reference": False, "reduce": "mean", "beta": 0.1, "nll": 1.0},
        ),
        PreferenceRow(
            "kto",
            "Ethayarajh 2024, arXiv:2402.01306",
            "lambda_D (1 - sigmoid(beta (r - z0))) | lambda_U (1 - sigmoid(beta (z0 - r)))",
            {"loss": "kto"},
        ),
        PreferenceRow(
            "bco",
            "Jung 2024, arXiv:2404.04656",
            "-logsigmoid(beta (r - s)) | -logsigmoid(-beta (r - s)), s the running mean of r",
            {"loss": "bco"},
        ),
    )
}
