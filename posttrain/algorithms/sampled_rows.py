"""Algorithms that select among the policy's own samples and train on the selection with an objective of another table.

online DPO, IPO ...     a preference objective over pairs of a prompt's samples
RAFT, ReST, ReST-EM     the likelihood of the samples that pass a threshold
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator

from posttrain.algorithms.objective import AlgorithmRow
from posttrain.algorithms.preference_rows import PREFERENCE_ROWS, PreferenceConfig
from posttrain.algorithms.supervised import LikelihoodConfig
from posttrain.params.choices import OneOf, Option, Options
from posttrain.params.renames import SAMPLED, inside


class BestAgainstWorst(Options):
    """One pair a prompt."""

    type: str = "best_against_worst"
    gap: float = Field(0.0, ge=0, description="rewards must differ by more")


class AllAbove(Options):
    """Every pair of clearly different rewards (RS-DPO)."""

    certainty: float = Field(0.6, ge=0.5, lt=1, description="sigmoid((r_i - r_j) / scale) must be above it")
    scale: float = Field(1.0, gt=0, description="temperature of that probability")


class RejectionSampled(Options):
    """Pairs of accepted samples (RSO)."""

    keep: int = Field(4, ge=2, description="samples accepted of each prompt")
    temperature: float = Field(0.5, gt=0, description="accepted with exp((r - r_max) / temperature)")


class Rising(Options):
    """A threshold that rises (ReST)."""

    quantiles: list[float] = Field([0.5, 0.7, 0.9], min_length=1, description="of a step's rewards, in order")
    rounds: int = Field(5, ge=1, description="rounds of sampling that share a quantile")

    @model_validator(mode="after")
    def _rise(self) -> Rising:
        if sorted(self.quantiles) != self.quantiles or not all(0 <= q < 1 for q in self.quantiles):
            raise ValueError("quantiles must lie in [0, 1) and must not fall: ReST filters harder with each round")
        return self


class Reaching(Options):
    """A fixed threshold (ReST-EM)."""

    threshold: float = Field(1.0, description="the least reward")


PAIR_SELECT: OneOf[Option] = OneOf(
    {
        "best_against_worst": Option(BestAgainstWorst, "a prompt's best sample against its worst"),
        "all_above": Option(AllAbove, "all pairs with sigmoid((r_i - r_j) / scale) > certainty (RS-DPO)"),
        "rejection_sampled": Option(RejectionSampled, "pairs of samples accepted by their reward (RSO)"),
    },
    "best_against_worst",
    renamed=inside(SAMPLED, "select"),
)
BEST_SELECT: OneOf[Option] = OneOf(
    {
        "best": Option(Options, "each prompt's best sample (RAFT)"),
        "rising": Option(Rising, "samples above a quantile of the rewards that rises (ReST)"),
        "reaching": Option(Reaching, "samples whose reward reaches a threshold (ReST-EM)"),
    },
    "best",
    renamed=inside(SAMPLED, "select"),
)


class SampledPairConfig(PreferenceConfig):
    """A preference objective, and how its pairs are sampled and selected."""

    select: Annotated[Options, PAIR_SELECT] = Field(
        PAIR_SELECT.chosen, description="which two samples of a prompt become a pair"
    )
    mixture: float = Field(
        0.0, ge=0, lt=1, description="the reference's share in the geometric mixture that is sampled from (IPO-MD)"
    )

    @model_validator(mode="after")
    def _sampled(self) -> SampledPairConfig:
        wrong = []
        if not self.paired:
            wrong.append(
                f"loss '{self.loss.type}' takes single answers, and this algorithm makes pairs. Use a pair loss"
            )
        if self.parts > 1:
            wrong.append("parts is for a table of pairs, not for samples. Remove parts")
        if self.mixture and not self.reference:
            wrong.append("mixture samples with the reference, and reference is false. Use mixture 0, or reference true")
        if wrong:
            raise ValueError("; ".join(wrong))
        return self


class SampledBestConfig(LikelihoodConfig):
    """The likelihood of the policy's best samples."""

    select: Annotated[Options, BEST_SELECT] = Field(BEST_SELECT.chosen, description="which samples are trained on")


def _pairs(name: str, paper: str, formula: str, of: str, **values: Any) -> AlgorithmRow:
    return AlgorithmRow(name, paper, formula, {**PREFERENCE_ROWS[of].values, **values}, SampledPairConfig)


def _best(name: str, paper: str, formula: str, select: str) -> AlgorithmRow:
    return AlgorithmRow(name, paper, formula, {"select": select}, SampledBestConfig)


SAMPLED_ROWS: dict[str, AlgorithmRow] = {
    row.name: row
    for row in (
        _pairs("online_dpo", "Guo 2024, arXiv:2402.04792", "dpo on a prompt's best sample against its worst", "dpo"),
        _pairs("online_ipo", "Calandriello 2024, arXiv:2403.08635", "ipo on a prompt's best against its worst", "ipo"),
        _pairs(
            "ipo_md",
            "Calandriello 2024, arXiv:2403.08635",
            "ipo on a prompt's best against its worst, drawn from pi^(1-m) pi_ref^m",
            "ipo",
            mixture=0.25,
        ),
        _pairs(
            "rs_dpo",
            "Khaki 2024, arXiv:2402.10038",
            "dpo on all pairs with sigmoid((r_i - r_j) / scale) > certainty",
            "dpo",
            select="all_above",
        ),
        _pairs(
            "rso",
            "Liu 2023, arXiv:2309.06657",
            "dpo on pairs of samples accepted with probability exp((r - r_max) / temperature)",
            "dpo",
            select="rejection_sampled",
        ),
        _best("raft", "Dong 2023, arXiv:2304.06767", "-mean logp of each prompt's best sample", "best"),
        _best(
            "rest",
            "Gulcehre 2023, arXiv:2308.08998",
            "-mean logp of the samples above a quantile of the rewards that rises",
            "rising",
        ),
        _best(
            "rest_em",
            "Singh 2023, arXiv:2312.06585",
            "-mean logp of every sample whose reward reaches a threshold",
            "reaching",
        ),
    )
}
