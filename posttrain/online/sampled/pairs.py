"""DPO or IPO on pairs of the policy's samples. IPO-MD samples from a mixture with the reference."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import torch
from pydantic import Field, model_validator
from torch import Tensor

from posttrain.algorithms.objective import AlgorithmRow, Objective
from posttrain.algorithms.preference_config import PreferenceConfig
from posttrain.algorithms.preference_objective import PreferenceObjective
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


class BestAgainstWorst(Options):
    """One pair per prompt."""

    type: str = "best_against_worst"
    gap: float = Field(0.0, ge=0, description="minimum difference of rewards (exclusive)")


class AllAbove(Options):
    """Every pair whose rewards differ clearly (RS-DPO)."""

    certainty: float = Field(0.6, ge=0.5, lt=1, description="minimum of sigmoid((r_i - r_j) / scale) (exclusive)")
    scale: float = Field(1.0, gt=0, description="scale of the reward difference")


class RejectionSampled(Options):
    """Pairs of accepted samples (RSO)."""

    keep: int = Field(4, ge=2, description="accepted samples per prompt")
    temperature: float = Field(
        0.5, gt=0, description="a sample is accepted with probability exp((r - r_max) / temperature)"
    )


PAIR_SELECT: OneOf[Option] = OneOf(
    {
        "best_against_worst": Option(BestAgainstWorst, "each prompt's best sample against its worst"),
        "all_above": Option(AllAbove, "all pairs with sigmoid((r_i - r_j) / scale) > certainty (RS-DPO)"),
        "rejection_sampled": Option(RejectionSampled, "pairs of samples accepted by their reward (RSO)"),
    },
    "best_against_worst",
)


class SampledPairConfig(PreferenceConfig):
    """A preference objective, and the sampling and selection of its pairs."""

    select: Annotated[Options, PAIR_SELECT] = Field(
        PAIR_SELECT.chosen, description="selection of the two samples of a pair"
    )
    mixture: float = Field(
        0.0, ge=0, lt=1, description="weight of the reference in the geometric mixture that is sampled (IPO-MD)"
    )

    @model_validator(mode="after")
    def _sampled(self) -> SampledPairConfig:
        wrong = []
        if not self.paired:
            wrong.append(
                f"loss '{self.loss.type}' needs single answers, but this algorithm makes pairs. Use a pair loss"
            )
        if self.parts > 1:
            wrong.append("parts only works with a table of pairs, not with samples. Remove parts")
        if self.mixture and not self.reference:
            wrong.append("mixture samples with the reference, but reference is false. Use mixture 0, or reference true")
        if wrong:
            raise ValueError("; ".join(wrong))
        return self


class SampledPairRun(SampledRun, SampledPairConfig):
    """A preference objective on pairs of the policy's samples."""

    @model_validator(mode="after")
    def _has_pairs(self) -> SampledPairRun:
        if self.rollout.group_size < 2:
            raise ValueError("rollout.group_size = 1: a pair is two samples of one prompt. Use 2 or more")
        return self

    def objective(self) -> Objective:
        """Return the objective of the preference preset."""
        return PreferenceObjective(self)

    @property
    def mixture_share(self) -> float:
        """The reference's weight in the mixture (IPO-MD); 0: only the policy."""
        return self.mixture

    def source(self, samples: BatchSource, text: ChatText) -> BatchSource:  # noqa: ARG002
        """Return the pairs that the rule selects."""
        return FilteredSource(samples, pair_rule(self.select, self.seed))

    @property
    def compares_groups(self) -> bool:
        """True: a pair consists of a better and a worse sample of one prompt."""
        return True

    def step_tokens(self, longest_prompt: int) -> int:
        """Return the maximum number of tokens of a step. A pair may consist of any two samples of a group."""
        return super().step_tokens(longest_prompt) * (self.rollout.group_size - 1)


def pair_rule(select: Options, seed: int) -> Select:
    """Return the rule that selects pairs."""

    def select_rows(batch: Batch, step: int) -> Batch:
        reward_B, group_B = rewards_and_groups(batch)
        match select:
            case BestAgainstWorst():
                return paired(batch, *best_against_worst(reward_B, group_B, select.gap))
            case AllAbove():
                return paired(batch, *all_against_all(reward_B, group_B, select.certainty, select.scale))
            case RejectionSampled():
                draw = torch.Generator().manual_seed(seed * 1_000_003 + step)
                accepted = rejection_sampled(reward_B, group_B, select.keep, select.temperature, draw)
                return paired(batch, *accepted)
        raise TypeError(f"no rule for {select.type}")

    return select_rows


def paired(batch: Batch, chosen: Tensor, rejected: Tensor) -> Batch:
    """Return alternating chosen and rejected rows. Each pair is an item.

    If there are no pairs, the first row is paired with itself and does not count, so the step has zero gradient.
    """
    counts = torch.ones(chosen.numel() * 2)
    if not chosen.numel():
        chosen, rejected, counts = torch.zeros(1, dtype=torch.long), torch.zeros(1, dtype=torch.long), torch.zeros(2)
    part = selected_rows(batch, torch.stack([chosen, rejected], dim=1).flatten())
    pairs = chosen.numel()
    columns = replace(part.columns, item_B=torch.arange(pairs).repeat_interleave(2))
    return part.with_columns(columns.with_rows(side=torch.tensor([1.0, -1.0]).repeat(pairs), counts=counts))


def best_against_worst(reward_B: Tensor, group_B: Tensor, gap: float = 0.0) -> tuple[Tensor, Tensor]:
    """Return rows with the highest and lowest reward per group, if they differ by > `gap` (online DPO, Guo 2024)."""
    chosen, rejected = [], []
    for rows in groups(group_B):
        reward = reward_B[rows]
        if float(reward.max() - reward.min()) > gap:
            chosen.append(rows[reward.argmax()])
            rejected.append(rows[reward.argmin()])
    return stacked(chosen), stacked(rejected)


def all_against_all(reward_B: Tensor, group_B: Tensor, threshold: float, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return every pair of a group with sigmoid((r_i - r_j) / scale) above a threshold >= 0.5 (RS-DPO, Khaki 2024)."""
    if not 0.5 <= threshold < 1:
        raise ValueError(f"threshold = {threshold}: below 0.5, a pair could pass in both orders")
    chosen, rejected = [], []
    for rows in groups(group_B):
        reward = reward_B[rows]
        won, lost = (torch.sigmoid((reward[:, None] - reward[None, :]) / scale) > threshold).nonzero(as_tuple=True)
        chosen.append(rows[won])
        rejected.append(rows[lost])
    return _joined(chosen), _joined(rejected)


def rejection_sampled(
    reward_B: Tensor, group_B: Tensor, keep: int, beta: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return pairs of `keep` samples per group, accepted with probability exp((r - r_max) / beta) (RSO, Liu 2023).

    r_max is the highest reward that is not accepted yet. Accepted samples are paired at random, and ties are left out.
    """
    chosen, rejected = [], []
    for rows in groups(group_B):
        taken = _accepted(reward_B[rows], min(keep, rows.numel()), beta, generator)
        shuffled = taken[torch.randperm(taken.numel(), generator=generator)]
        for left, right in shuffled[: taken.numel() // 2 * 2].view(-1, 2).tolist():
            first, second = rows[left], rows[right]
            if reward_B[first] == reward_B[second]:
                continue
            chosen.append(first if reward_B[first] > reward_B[second] else second)
            rejected.append(second if reward_B[first] > reward_B[second] else first)
    return stacked(chosen), stacked(rejected)


def _accepted(reward_G: Tensor, keep: int, beta: float, generator: torch.Generator) -> Tensor:
    left = list(range(reward_G.numel()))
    taken: list[int] = []
    while len(taken) < keep:
        highest = max(float(reward_G[i]) for i in left)
        for i in list(left):
            draw = float(torch.rand((), generator=generator))
            if len(taken) < keep and draw < torch.exp((reward_G[i] - highest) / beta):
                taken.append(i)
                left.remove(i)
    return torch.tensor(taken)


def _joined(numbers: list[Tensor]) -> Tensor:
    return torch.cat(numbers) if numbers else torch.empty(0, dtype=torch.long)


ROWS = {
    "online_dpo": AlgorithmRow(
        "Guo 2024, arXiv:2402.04792",
        "dpo on a prompt's best sample against its worst",
        {"loss": "dpo"},
        SampledPairConfig,
        SampledPairRun,
    ),
    "rs_dpo": AlgorithmRow(
        "Khaki 2024, arXiv:2402.10038",
        "dpo on all pairs with sigmoid((r_i - r_j) / scale) > certainty",
        {"loss": "dpo", "select": "all_above"},
        SampledPairConfig,
        SampledPairRun,
    ),
    "rso": AlgorithmRow(
        "Liu 2023, arXiv:2309.06657",
        "dpo on pairs of samples accepted with probability exp((r - r_max) / temperature)",
        {"loss": "dpo", "select": "rejection_sampled"},
        SampledPairConfig,
        SampledPairRun,
    ),
    "online_ipo": AlgorithmRow(
        "Calandriello 2024, arXiv:2403.08635",
        "ipo on a prompt's best against its worst",
        {"loss": "ipo", "reduce": "mean"},
        SampledPairConfig,
        SampledPairRun,
    ),
    "ipo_md": AlgorithmRow(
        "Calandriello 2024, arXiv:2403.08635",
        "ipo on a prompt's best against its worst, drawn from pi^(1-m) pi_ref^m",
        {"loss": "ipo", "reduce": "mean", "mixture": 0.25},
        SampledPairConfig,
        SampledPairRun,
    ),
}
