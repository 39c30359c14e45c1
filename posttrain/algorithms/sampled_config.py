"""The settings of algorithms that train on a selection of the policy's own samples, with an objective of another kind.

online DPO, IPO ...     a preference objective over pairs of a prompt's samples
RAFT, ReST, ReST-EM     the likelihood of the samples that pass a threshold
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from posttrain.algorithms.objective import AlgorithmRow, named
from posttrain.algorithms.preference_config import PreferenceConfig
from posttrain.algorithms.supervised import LikelihoodConfig
from posttrain.params.choices import OneOf, Option, Options
from posttrain.params.listing import Listing
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


SAMPLED_ROWS: Listing[AlgorithmRow] = Listing("posttrain.algorithms.sampled", "ROWS", named)
