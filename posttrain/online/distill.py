"""Training with a teacher: its settings, and steps on own samples or on given answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, cast

import torch
from pydantic import Field, model_validator

from posttrain.algorithms.distillation import (
    DISTILL_ROWS,
    DistillObjective,
    DistillRunConfig,
    TaughtConfig,
    TaughtObjective,
    TeacherConfig,
)
from posttrain.algorithms.objective import Objective
from posttrain.algorithms.policy_config import POLICY_ROWS, TrpoOptions
from posttrain.online.config import OnlineConfig, OnlinePolicyConfig
from posttrain.online.reward_monitor import RewardMonitor
from posttrain.rewards.catalog import USUAL, Rewards
from posttrain.rewards.given import with_terms
from posttrain.rewards.reward import WeightedReward
from posttrain.settings.params import check
from posttrain.train.batch_sources import BatchSource, EpochSource, Example, WrappedSource
from posttrain.train.examples import RowLimit
from posttrain.train.run_config import Algorithms
from posttrain.train.step import Batch


class StudentConfig(OnlineConfig, TeacherConfig):
    """The settings of every training with a teacher."""

    example: ClassVar[str] = "gkd"
    """The algorithm that errors show."""
    progress: ClassVar[tuple[str, ...]] = ("reward", "length", "teacher_kl", "loss")
    weights: dict[str, Annotated[float, Field(gt=0)]] | None = Field(
        None, description="of several: each teacher's share of the divergence, by its name; null: equal shares"
    )

    @classmethod
    def preset(cls, algorithm: str, **settings: Any) -> StudentConfig:
        """Return the settings of a distillation (gkd, ...), or of a policy algorithm with a teacher.

        Example: `StudentConfig.preset("gkd", rollout={"rounds": 20})`
        """
        found = STUDENTS.entry(algorithm)
        merged = found.row.merged({**with_terms(settings), "algorithm": algorithm})
        return cast("StudentConfig", check(found.model, merged, where="settings", file="arguments"))


class DistillTraining(StudentConfig, RowLimit, DistillRunConfig):
    """The settings of a student that learns a teacher's distribution."""

    summary: ClassVar[tuple[str, ...]] = ("reward", "length", "teacher_kl")
    reward: Rewards = Field(USUAL, description="what is watched, not learned from")

    @model_validator(mode="after")
    def _samples_each_round(self) -> DistillTraining:
        if self.own < 1 and self.rollout.ahead:
            raise ValueError(f"own = {self.own} skips rounds, and rollout.ahead 1 samples each of them. Use ahead 0")
        return self

    def objective(self) -> Objective:
        """Return the divergence."""
        return DistillObjective(self)

    @property
    def learned_from(self) -> dict[str, WeightedReward]:
        """No reward: a prompt without a readable answer is as good as any."""
        return {}

    def mixed(self, own: BatchSource, given: Sequence[Example]) -> BatchSource:
        """Own samples, given answers, or steps of both."""
        if self.own == 1 or not len(given):
            return own
        size = max(self.rollout.prompts * self.rollout.group_size // self.rollout.minibatches, 1)
        return MixedSource(own, EpochSource(given, size, 1, self.seed), self.own, self.seed)

    def monitor(self, section: str) -> RewardMonitor:
        """Return a monitor without rewards: they are not learned from."""
        return RewardMonitor(section, {}, compares=False, patience=None)

    def longest_row(self, longest_prompt: int) -> int:
        """Return an own sample or a demonstration."""
        return max(super().longest_row(longest_prompt), self.max_tokens)


class TaughtTraining(StudentConfig, OnlinePolicyConfig, TaughtConfig):
    """The settings of a policy that learns from its rewards and from a teacher."""

    summary: ClassVar[tuple[str, ...]] = (*OnlineConfig.summary, "teacher_kl")

    @model_validator(mode="after")
    def _can_have_a_teacher(self) -> TaughtTraining:
        if isinstance(self.update, TrpoOptions):
            raise ValueError("update = trpo: its step is bounded by the policy's loss alone. Use adamw")  # noqa: TRY004
        return self

    def objective(self) -> Objective:
        """Return the row's objective with the divergence next to it."""
        return TaughtObjective(self, self.rollout.sampling.max_tokens)


class MixedSource(WrappedSource):
    """Steps on own samples or on demonstrations; `share` is the probability of own samples (GKD, Agarwal 2023)."""

    def __init__(self, own: BatchSource, offline: EpochSource, share: float, seed: int) -> None:
        super().__init__(own)
        self._offline, self._share, self._seed = offline, share, seed

    def batch(self, step: int) -> Batch:
        """Return the rows of one step, all of one kind, which the seed and the step decide."""
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + step)
        own = float(torch.rand((), generator=generator)) < self._share
        return (self._inner if own else self._offline).batch(step)


STUDENTS = Algorithms((DISTILL_ROWS, lambda _: DistillTraining), (POLICY_ROWS, lambda _: TaughtTraining))
"""Algorithm -> its settings with a teacher."""
