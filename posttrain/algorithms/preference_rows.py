"""The tables of preference objectives: losses with their options, and algorithms with their settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator
from torch import Tensor

from posttrain.algorithms.objective import AlgorithmRow, algorithm_table
from posttrain.formulas import preference as f
from posttrain.params.choices import OneOf, Options
from posttrain.params.params import Params
from posttrain.params.renames import PREFERENCE, keys


@dataclass(frozen=True)
class PairLoss:
    """A loss per pair: (h, l, options) -> [pairs], of the chosen and the rejected answer.

    Example: `PairLoss(BetaOptions, lambda h, l, options: -logsigmoid(options.beta * (h - l)), "-logsigmoid(...)")`
    """

    options: type[Options]
    loss: Callable[[Tensor, Tensor, Any], Tensor]
    formula: str
    balanced: bool = True
    """Whether the gradients of two equal answers cancel."""


@dataclass(frozen=True)
class UnaryLoss:
    """A loss per labelled answer: (r, label, shift, options) -> [answers]; `shift` is how its baseline is estimated.

    Example: `UnaryLoss(BetaOptions, lambda r, label, s, k: -logsigmoid(k.beta * label * (r - s)), "...", "running")`
    """

    options: type[Options]
    loss: Callable[[Tensor, Tensor, Tensor, Any], Tensor]
    formula: str
    shift: Literal["mismatched", "running"]


class BetaOptions(Options):
    """The temperature of the implicit reward."""

    beta: float = Field(0.1, gt=0, description="inverse temperature of the implicit reward")


class DpoOptions(BetaOptions):
    """Label smoothing (cDPO)."""

    label_smoothing: float = Field(0.0, ge=0, lt=0.5, description="assumed fraction of flipped labels")


class ExoOptions(BetaOptions):
    """Label smoothing, which EXO needs."""

    label_smoothing: float = Field(
        1e-3, gt=0, lt=0.5, description="assumed fraction of flipped labels; KL(p || q) needs one above 0"
    )


class SlicOptions(Options):
    """A margin without a temperature."""

    delta: float = Field(1.0, gt=0, description="by how much h - l must win")


class SimpoOptions(Options):
    """A temperature for mean log-probs, and a margin."""

    beta: float = Field(2.0, gt=0, description="inverse temperature of the implicit reward")
    gamma: float = Field(1.0, ge=0, description="by how much beta (h - l) must win")


class OrpoOptions(Options):
    """The odds term's weight."""

    beta: float = Field(0.1, gt=0, description="weight of the odds (the paper's lambda)")


class UnpairedOptions(BetaOptions):
    """Weights of the two labels."""

    desirable: float = Field(1.0, ge=0, description="weight of desirable answers")
    undesirable: float = Field(1.0, ge=0, description="weight of undesirable answers")


PAIR_LOSSES: Mapping[str, PairLoss] = {
    "dpo": PairLoss(
        DpoOptions,
        lambda h, low, k: f.dpo(h, low, k.beta, k.label_smoothing),
        "-(1 - s) logsigmoid(beta (h - l)) - s logsigmoid(-beta (h - l))",
    ),
    "robust_dpo": PairLoss(
        DpoOptions,
        lambda h, low, k: f.robust_dpo(h, low, k.beta, k.label_smoothing),
        "(-(1 - s) logsigmoid(m) + s logsigmoid(-m)) / (1 - 2 s), m = beta (h - l)",
    ),
    "exo": PairLoss(
        ExoOptions,
        lambda h, low, k: f.exo(h, low, k.beta, k.label_smoothing),
        "KL((sigmoid(m), sigmoid(-m)) || (1 - s, s)), m = beta (h - l)",
    ),
    "ipo": PairLoss(BetaOptions, lambda h, low, k: f.ipo(h, low, k.beta), "(h - l - 1 / (2 beta))^2"),
    "apo_zero": PairLoss(
        BetaOptions, lambda h, low, k: f.apo_zero(h, low, k.beta), "1 - sigmoid(beta h) + sigmoid(beta l)"
    ),
    "apo_down": PairLoss(
        BetaOptions,
        lambda h, low, k: f.apo_down(h, low, k.beta),
        "sigmoid(beta h) + 1 - sigmoid(beta (h - l))",
        balanced=False,
    ),
    "slic": PairLoss(SlicOptions, lambda h, low, k: f.slic(h, low, k.delta), "max(0, delta - (h - l))"),
    "simpo": PairLoss(
        SimpoOptions, lambda h, low, k: f.simpo(h, low, k.beta, k.gamma), "-logsigmoid(beta (h - l) - gamma)"
    ),
    "orpo": PairLoss(
        OrpoOptions, lambda h, low, k: f.orpo(h, low, k.beta), "-beta logsigmoid(logodds(h) - logodds(l))"
    ),
}
UNARY_LOSSES: Mapping[str, UnaryLoss] = {
    "kto": UnaryLoss(
        UnpairedOptions,
        lambda r, label, z0, k: f.kto(r, label, z0, k.beta, k.desirable, k.undesirable),
        "lambda_D (1 - sigmoid(beta (r - z0))) | lambda_U (1 - sigmoid(beta (z0 - r)))",
        "mismatched",
    ),
    "bco": UnaryLoss(
        UnpairedOptions,
        lambda r, label, shift, k: f.bco(r, label, shift, k.beta, k.desirable, k.undesirable),
        "lambda_D -logsigmoid(beta (r - s)) | lambda_U -logsigmoid(-beta (r - s))",
        "running",
    ),
}
LOSS: OneOf[PairLoss | UnaryLoss] = OneOf({**PAIR_LOSSES, **UNARY_LOSSES}, "dpo", own=(PairLoss, UnaryLoss))


class PreferenceConfig(Params):
    """The settings of a preference objective."""

    renamed: ClassVar[Mapping[str, str]] = keys(PREFERENCE)
    loss: Annotated[Options, LOSS] = Field(LOSS.chosen, description="the loss per pair or labelled answer")
    reference: bool = Field(True, description="whether log-probs are taken relative to the reference policy")
    reduce: Literal["sum", "mean"] = Field("sum", description="over an answer's tokens")
    nll: float = Field(0.0, ge=0, description="weight of the chosen answers' mean negative log-likelihood")
    parts: int = Field(
        1, ge=1, description="sDPO: number of parts of the data; each part's reference is the policy at its start"
    )
    allow_unsupported: bool = Field(False, description="allow combinations that are refused by default")

    @model_validator(mode="after")
    def _meaningful(self) -> PreferenceConfig:
        refused = refusal(self)
        if refused and not self.allow_unsupported:
            raise ValueError(f"{refused}, or allow_unsupported: true")
        return self

    @property
    def loss_entry(self) -> PairLoss | UnaryLoss:
        """The entry of LOSS, or the user's own."""
        return LOSS.entry(self.loss.type)

    @property
    def paired(self) -> bool:
        """Whether it learns from pairs (table `pairs`) or from labelled answers (table `feedback`)."""
        return isinstance(self.loss_entry, PairLoss)


def refusal(knobs: PreferenceConfig) -> str | None:
    """Return why a combination of valid settings is refused, with the fix; None if it is not."""
    if knobs.loss.type == "orpo" and (knobs.reference or knobs.reduce != "mean"):
        return "orpo takes the odds of an answer's mean probability. Use reference false and reduce mean"
    if not knobs.paired and not knobs.reference:
        return (
            f"{knobs.loss.type} compares an answer's shift from the reference with the shift elsewhere. "
            "Use reference true"
        )
    if knobs.parts > 1 and not knobs.reference:
        return "parts updates the reference, and reference is false. Use parts 1, or reference true"
    return None


PREFERENCE_ROWS: dict[str, AlgorithmRow] = algorithm_table(
    PreferenceConfig,
    (
        AlgorithmRow("dpo", "Rafailov 2023, arXiv:2305.18290", "-logsigmoid(beta (h - l))", {"loss": "dpo"}),
        AlgorithmRow(
            "cdpo",
            "Mitchell 2023, ericmitchell.ai/cdpo.pdf",
            "-(1 - s) logsigmoid(beta (h - l)) - s logsigmoid(-beta (h - l))",
            {"loss": {"type": "dpo", "label_smoothing": 0.1}},
        ),
        AlgorithmRow(
            "robust_dpo",
            "Chowdhury 2024, arXiv:2403.00409",
            "(-(1 - s) logsigmoid(m) + s logsigmoid(-m)) / (1 - 2 s), m = beta (h - l)",
            {"loss": {"type": "robust_dpo", "label_smoothing": 0.1}},
        ),
        AlgorithmRow(
            "sdpo",
            "Kim 2024, arXiv:2403.19270",
            "-logsigmoid(beta (h - l)), the reference of each part of the data is the policy before it",
            {"loss": "dpo", "parts": 2},
        ),
        AlgorithmRow(
            "exo",
            "Ji 2024, arXiv:2402.00856",
            "KL((sigmoid(m), sigmoid(-m)) || (1 - s, s)), m = beta (h - l)",
            {"loss": "exo"},
        ),
        AlgorithmRow(
            "ipo",
            "Azar 2023, arXiv:2310.12036",
            "(h - l - 1 / (2 beta))^2, means over tokens",
            {"loss": "ipo", "reduce": "mean"},
        ),
        AlgorithmRow(
            "apo_zero",
            "D'Oosterlinck 2024, arXiv:2408.06266",
            "1 - sigmoid(beta h) + sigmoid(beta l)",
            {"loss": "apo_zero"},
        ),
        AlgorithmRow(
            "apo_down",
            "D'Oosterlinck 2024, arXiv:2408.06266",
            "sigmoid(beta h) + 1 - sigmoid(beta (h - l))",
            {"loss": "apo_down"},
        ),
        AlgorithmRow(
            "slic",
            "Zhao 2023, arXiv:2305.10425",
            "max(0, delta - (logp_c - logp_r)) + lambda NLL(chosen)",
            {"loss": "slic", "reference": False, "nll": 0.1},
        ),
        AlgorithmRow(
            "cpo",
            "Xu 2024, arXiv:2401.08417",
            "-logsigmoid(beta (logp_c - logp_r)) + NLL(chosen)",
            {"loss": "dpo", "reference": False, "nll": 1.0},
        ),
        AlgorithmRow(
            "simpo",
            "Meng 2024, arXiv:2405.14734",
            "-logsigmoid(beta (logp_c - logp_r) - gamma), means over tokens",
            {"loss": "simpo", "reference": False, "reduce": "mean"},
        ),
        AlgorithmRow(
            "orpo",
            "Hong 2024, arXiv:2403.07691",
            "NLL(chosen) + lambda * -logsigmoid(logodds_c - logodds_r), logodds = m - log1mexp(m), m the mean logp",
            {"loss": "orpo", "reference": False, "reduce": "mean", "nll": 1.0},
        ),
        AlgorithmRow(
            "kto",
            "Ethayarajh 2024, arXiv:2402.01306",
            "lambda_D (1 - sigmoid(beta (r - z0))) | lambda_U (1 - sigmoid(beta (z0 - r)))",
            {"loss": "kto"},
        ),
        AlgorithmRow(
            "bco",
            "Jung 2024, arXiv:2404.04656",
            "-logsigmoid(beta (r - s)) | -logsigmoid(-beta (r - s)), s the running mean of r",
            {"loss": "bco"},
        ),
    ),
)
