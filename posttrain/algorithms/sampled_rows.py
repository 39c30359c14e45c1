"""Algorithms that choose among the policy's own samples and learn from the choice with an objective of another table.

online DPO, IPO ...     a preference objective over pairs of a prompt's samples
RAFT, ReST, ReST-EM     the likelihood of the samples that reach a mark
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field, model_validator

from posttrain.algorithms.preference_rows import FEEDBACK, PREFERENCE_ROWS, PreferenceKnobs
from posttrain.algorithms.preference_rows import READERS as PREFERENCE_READERS
from posttrain.algorithms.row import Readers, Row, ignored
from posttrain.algorithms.supervised import LikelihoodKnobs
from posttrain.params import Params


class PairSelect(Params):
    """Which two samples of a prompt become a pair."""

    rule: Literal["best_against_worst", "all_above", "rejection_sampled"] = Field(
        "best_against_worst", description="best_against_worst: one pair a prompt; all_above: RS-DPO's; or RSO's"
    )
    gap: float = Field(0.0, ge=0, description="best_against_worst: rewards must differ by more")
    certainty: float = Field(0.6, ge=0.5, lt=1, description="all_above: sigmoid((r_i - r_j) / scale) must be above it")
    scale: float = Field(1.0, gt=0, description="all_above: temperature of that probability")
    keep: int = Field(4, ge=2, description="rejection_sampled: samples accepted of each prompt")
    temperature: float = Field(0.5, gt=0, description="rejection_sampled: accepted with exp((r - r_max) / temperature)")


class BestSelect(Params):
    """Which samples are good enough to be learned by heart."""

    rule: Literal["best", "rising", "reaching"] = Field(
        "best", description="best: one a prompt; rising: above a quantile that rises; reaching: a fixed reward or more"
    )
    threshold: float = Field(1.0, description="reaching: the least reward")
    quantiles: list[float] = Field(
        [0.5, 0.7, 0.9], min_length=1, description="rising: of a step's rewards, one after the other"
    )
    rounds: int = Field(5, ge=1, description="rising: rounds of sampling that share a quantile")

    @model_validator(mode="after")
    def _rise(self) -> BestSelect:
        if sorted(self.quantiles) != self.quantiles or not all(0 <= q < 1 for q in self.quantiles):
            raise ValueError("select.quantiles must lie in [0, 1) and must not fall: ReST filters harder as it goes on")
        return self


_PAIR_READERS: Readers = {
    "select.gap": ("select.rule", frozenset({"best_against_worst"})),
    "select.certainty": ("select.rule", frozenset({"all_above"})),
    "select.scale": ("select.rule", frozenset({"all_above"})),
    "select.keep": ("select.rule", frozenset({"rejection_sampled"})),
    "select.temperature": ("select.rule", frozenset({"rejection_sampled"})),
}
_BEST_READERS: Readers = {
    "select.threshold": ("select.rule", frozenset({"reaching"})),
    "select.quantiles": ("select.rule", frozenset({"rising"})),
    "select.rounds": ("select.rule", frozenset({"rising"})),
}
READERS: Readers = {**PREFERENCE_READERS, **_PAIR_READERS, **_BEST_READERS}
"""Which knob is read when, of both kinds of rows."""


class SampledPairKnobs(PreferenceKnobs):
    """A preference objective and how its pairs are sampled and chosen."""

    select: PairSelect = Field(default_factory=PairSelect)
    mixture: float = Field(
        0.0, ge=0, lt=1, description="the reference's share in the geometric mixture that is sampled from (IPO-MD)"
    )

    @model_validator(mode="after")
    def _sampled(self) -> SampledPairKnobs:
        wrong = ignored(self, _PAIR_READERS)
        if self.loss in FEEDBACK:
            wrong.append(f"loss '{self.loss}' takes single answers, and pairs are chosen here. Use a loss over pairs")
        if self.parts > 1:
            wrong.append("parts cuts given data, and here is none. Remove parts")
        if self.mixture and not self.reference:
            wrong.append("mixture samples with the reference, and there is none. Use mixture 0, or reference true")
        if wrong:
            raise ValueError("; ".join(wrong))
        return self


class SampledBestKnobs(LikelihoodKnobs):
    """The likelihood of one's own best samples."""

    select: BestSelect = Field(default_factory=BestSelect)

    @model_validator(mode="after")
    def _sampled(self) -> SampledBestKnobs:
        wrong = ignored(self, _BEST_READERS)
        if wrong:
            raise ValueError("; ".join(wrong))
        return self


@dataclass(frozen=True)
class SampledRow(Row[Any]):
    """One way to choose, and the objective that learns from it."""

    model: type[SampledPairKnobs] | type[SampledBestKnobs]

    def laid(self, over: Mapping[str, Any]) -> dict[str, Any]:
        """The row's knobs as plain data with some replaced, before they are typed."""
        return self.lay(self.model, readers_of(self), over)

    def settings(self, **over: Any) -> Any:
        """The row's knobs with some replaced."""
        return self.model.model_validate(self.laid(over))


def readers_of(row: SampledRow) -> Readers:
    """Which knob of a row's model is read when."""
    return {**PREFERENCE_READERS, **_PAIR_READERS} if row.model is SampledPairKnobs else _BEST_READERS


def _pairs(name: str, paper: str, formula: str, of: str, **knobs: Any) -> SampledRow:
    return SampledRow(name, paper, formula, {**PREFERENCE_ROWS[of].knobs, **knobs}, SampledPairKnobs)


def _best(name: str, paper: str, formula: str, **select: Any) -> SampledRow:
    return SampledRow(name, paper, formula, {"select": select}, SampledBestKnobs)


SAMPLED_ROWS: dict[str, SampledRow] = {
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
            select={"rule": "all_above"},
        ),
        _pairs(
            "rso",
            "Liu 2023, arXiv:2309.06657",
            "dpo on pairs of samples accepted with probability exp((r - r_max) / temperature)",
            "dpo",
            select={"rule": "rejection_sampled"},
        ),
        _best("raft", "Dong 2023, arXiv:2304.06767", "-mean logp of each prompt's best sample", rule="best"),
        _best(
            "rest",
            "Gulcehre 2023, arXiv:2308.08998",
            "-mean logp of the samples above a quantile of the rewards that rises",
            rule="rising",
        ),
        _best(
            "rest_em",
            "Singh 2023, arXiv:2312.06585",
            "-mean logp of every sample whose reward reaches a threshold",
            rule="reaching",
        ),
    )
}
