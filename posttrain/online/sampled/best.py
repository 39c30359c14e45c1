"""Train on the likelihood of good samples: the best sample of a prompt (RAFT), or all above a threshold (ReST)."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field, model_validator
from torch import Tensor

from posttrain.algorithms.objective import AlgorithmRow, Objective
from posttrain.algorithms.supervised import LikelihoodConfig, LikelihoodObjective
from posttrain.online.selection import (
    FilteredSource,
    SampledRun,
    Select,
    groups,
    rewards_and_groups,
    selected_rows,
    stacked,
)
from posttrain.settings.choices import OneOf, Option, Options
from posttrain.text.chat import ChatText
from posttrain.train.batch_sources import BatchSource
from posttrain.train.step import Batch


class Rising(Options):
    """A threshold that rises (ReST)."""

    quantiles: list[float] = Field(
        [0.5, 0.7, 0.9], min_length=1, description="quantiles of a step's rewards, used in order"
    )
    rounds: int = Field(5, ge=1, description="rounds of sampling per quantile")

    @model_validator(mode="after")
    def _rise(self) -> Rising:
        if sorted(self.quantiles) != self.quantiles or not all(0 <= q < 1 for q in self.quantiles):
            raise ValueError("quantiles must lie in [0, 1) and must not decrease: ReST filters harder with each round")
        return self


class Reaching(Options):
    """A fixed threshold (ReST-EM)."""

    threshold: float = Field(1.0, description="minimum reward")


BEST_SELECT: OneOf[Option] = OneOf(
    {
        "best": Option(Options, "each prompt's best sample (RAFT)"),
        "rising": Option(Rising, "samples above a rising quantile of the rewards (ReST)"),
        "reaching": Option(Reaching, "samples whose reward reaches a threshold (ReST-EM)"),
    },
    "best",
)


class SampledBestConfig(LikelihoodConfig):
    """Settings: the likelihood of the policy's best samples."""

    select: Annotated[Options, BEST_SELECT] = Field(
        BEST_SELECT.chosen, description="selection of the samples to train on"
    )


class SampledBestRun(SampledRun, SampledBestConfig):
    """A run that trains on the likelihood of the policy's best samples."""

    def objective(self) -> Objective:
        """Return the likelihood."""
        return LikelihoodObjective(self)

    def source(self, samples: BatchSource, text: ChatText) -> BatchSource:  # noqa: ARG002
        """Return the samples that the selection rule accepts."""
        return FilteredSource(samples, best_rule(self.select, self.rollout.minibatches * self.rollout.epochs))


def best_rule(select: Options, steps_a_round: int) -> Select:
    """Return the rule that selects samples. If no sample is good enough, it returns one sample with weight 0.

    Thresholds apply to the outcome, without rewards for form and length.
    """

    def select_rows(batch: Batch, step: int) -> Batch:
        reward_B, group_B = rewards_and_groups(batch)
        outcome_B = batch.columns.rows["outcome"]
        match select:
            case Rising():
                iteration = step // (select.rounds * steps_a_round)
                threshold = rising_threshold(outcome_B, iteration, tuple(select.quantiles))
            case Reaching():
                threshold = select.threshold
            case _:
                return selected_rows(batch, best_of_group(reward_B, group_B))
        reached, reaching = bool((outcome_B >= threshold).any()), above(outcome_B, threshold)
        part = selected_rows(batch, reaching if reached else outcome_B.argmax()[None])
        return part.with_columns(part.columns.with_rows(counts=torch.full((len(part),), float(reached))))

    return select_rows


def best_of_group(reward_B: Tensor, group_B: Tensor) -> Tensor:
    """Return the row with the highest reward of each group; the first if several are equal (RAFT, Dong 2023)."""
    return stacked([rows[reward_B[rows].argmax()] for rows in groups(group_B)])


def above(reward_B: Tensor, threshold: float) -> Tensor:
    """Return the rows whose rewards reach the threshold (ReST-EM, Singh 2023)."""
    return (reward_B >= threshold).nonzero().squeeze(1)


def rising_threshold(reward_B: Tensor, iteration: int, quantiles: tuple[float, ...]) -> float:
    """Return the quantile used as threshold in iteration n. Quantiles must not decrease (ReST, Gulcehre 2023)."""
    if list(quantiles) != sorted(quantiles) or not quantiles:
        raise ValueError(f"quantiles = {quantiles}: ReST filters harder with each iteration, so they must not decrease")
    return float(reward_B.double().quantile(quantiles[min(iteration, len(quantiles) - 1)]))


ROWS = {
    "raft": AlgorithmRow(
        "Dong 2023, arXiv:2304.06767",
        "-mean logp of each prompt's best sample",
        {"select": "best"},
        SampledBestConfig,
        SampledBestRun,
    ),
    "rest": AlgorithmRow(
        "Gulcehre 2023, arXiv:2308.08998",
        "-mean logp of the samples above a quantile of the rewards that rises",
        {"select": "rising"},
        SampledBestConfig,
        SampledBestRun,
    ),
    "rest_em": AlgorithmRow(
        "Singh 2023, arXiv:2312.06585",
        "-mean logp of every sample whose reward reaches a threshold",
        {"select": "reaching"},
        SampledBestConfig,
        SampledBestRun,
    ),
}
