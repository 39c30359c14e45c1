"""Training with a teacher: its settings, and steps on the student's samples or given answers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, cast

import torch
from pydantic import Discriminator, Field, Tag, model_validator

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
from posttrain.errors import ParamsError
from posttrain.online.config import OnlineConfig, OnlinePolicyConfig
from posttrain.online.reward_monitor import RewardMonitor
from posttrain.online.served_teacher import TeacherServer
from posttrain.rewards.catalog import USUAL, Rewards
from posttrain.rewards.given import with_terms
from posttrain.rewards.reward import WeightedReward
from posttrain.settings.host import HOST
from posttrain.settings.params import ONE, SEVERAL, check
from posttrain.train.batch_sources import BatchSource, EpochSource, Example, WrappedSource
from posttrain.train.examples import RowLimit
from posttrain.train.run_config import Algorithms
from posttrain.train.step import Batch

SERVED: Final = "served"
"""The name of a teacher at an endpoint without a name."""


def _form(value: Any) -> str:
    """Tell whether the value is one endpoint or several by name."""
    several = isinstance(value, Mapping) and all(isinstance(one, Mapping | TeacherServer) for one in value.values())
    return SEVERAL if several or not isinstance(value, Mapping | TeacherServer) else ONE


Served = Annotated[
    Annotated[TeacherServer, Tag(ONE)] | Annotated[dict[str, TeacherServer], Field(min_length=1), Tag(SEVERAL)],
    Discriminator(_form),
]


class StudentConfig(OnlineConfig, TeacherConfig):
    """The settings of every training with a teacher."""

    example: ClassVar[str] = "gkd"
    """The algorithm in error messages' examples."""
    progress: ClassVar[tuple[str, ...]] = ("reward", "length", "teacher_kl", "loss")
    served: Served | None = Field(
        None,
        description="an endpoint with a teacher, or several by name; if there are no local teachers, set teacher: none",
    )
    weights: dict[str, Annotated[float, Field(gt=0)]] | None = Field(
        None, description="with several teachers: each teacher's share of the divergence by name; null: equal shares"
    )

    @classmethod
    def preset(cls, algorithm: str, **settings: Any) -> StudentConfig:
        """Return the settings of a distillation (gkd, ...), or of a policy algorithm with a teacher.

        Example: `StudentConfig.preset("gkd", rollout={"rounds": 20})`
        """
        entry = STUDENTS.entry(algorithm)
        merged = entry.row.merged({**with_terms(settings), "algorithm": algorithm})
        return cast("StudentConfig", check(entry.model, merged, where="settings", file="arguments"))

    @model_validator(mode="after")
    def _can_ask_its_teacher(self) -> StudentConfig:
        if self.algorithm == "context_distill" and self.context is None:
            raise ValueError("context_distill needs context: the system turn that only the teacher sees")
        if self.served is not None and self.temperature != 1:
            raise ValueError(
                f"temperature = {self.temperature:g} needs the logits of all tokens, but served returns only some "
                f"log-probs. Use 1"
            )
        return self

    @property
    def servers(self) -> dict[str, TeacherServer]:
        """The endpoints by teacher name."""
        return {SERVED: self.served} if isinstance(self.served, TeacherServer) else self.served or {}

    def teachers_fault(self, models: Collection[str], where: str) -> Iterator[str]:
        """Yield the errors in the teachers' names and weights. `models`: the names of the local teachers."""
        if twice := {*models} & {*self.servers}:
            yield f"{where}.served has a teacher with the name of a model, {min(twice)}. Rename it"
        names = [*models, *self.servers]
        if self.weights is not None and {*self.weights} != {*names}:
            known = f"the teachers are {', '.join(names)}"
            yield f"{where}.weights has {', '.join(self.weights)}, but {known}. Give each teacher a weight"
        elif self.weights is not None and len(names) == 1:
            yield (
                f"{where}.weights share the divergence among teachers, but {names[0]} is the only teacher. Remove them"
            )

    def shares(self, models: Collection[str], where: str) -> list[float]:
        """Return each teacher's share of the divergence: first these models, then the served teachers."""
        for fault in self.teachers_fault(models, where):
            what, fix = fault.rsplit(". ", 1)
            raise ParamsError(what=what, where=HOST.settings_file, fix=fix)
        names = [*models, *self.servers]
        weights = self.weights or dict.fromkeys(names, 1.0)
        return [weights[name] / sum(weights.values()) for name in names]


class DistillTraining(StudentConfig, RowLimit, DistillRunConfig):
    """The settings of a student that is trained on a teacher's distribution."""

    summary: ClassVar[tuple[str, ...]] = ("reward", "length", "teacher_kl")
    reward: Rewards = Field(USUAL, description="rewards that are only measured")

    @model_validator(mode="after")
    def _samples_each_round(self) -> DistillTraining:
        if self.own < 1 and self.rollout.ahead:
            raise ValueError(f"own = {self.own} skips rounds, but rollout.ahead 1 samples every round. Use ahead 0")
        return self

    def objective(self) -> Objective:
        """Return the divergence."""
        return DistillObjective(self)

    @property
    def learned_from(self) -> dict[str, WeightedReward]:
        """No reward: prompts without a readable answer are used too."""
        return {}

    def mixed(self, samples: BatchSource, given: Sequence[Example]) -> BatchSource:
        """Return the student's samples, given answers, or steps of both."""
        if self.own == 1 or not len(given):
            return samples
        size = max(self.rollout.prompts * self.rollout.group_size // self.rollout.minibatches, 1)
        return MixedSource(samples, EpochSource(given, size, 1, self.seed), self.own, self.seed)

    def monitor(self, section: str) -> RewardMonitor:
        """Return a monitor that ignores rewards, because the run does not train on them."""
        return RewardMonitor(section, {}, compares=False, patience=None)

    def longest_row(self, longest_prompt: int) -> int:
        """Return the maximum number of tokens of a student's sample or a demonstration."""
        return max(super().longest_row(longest_prompt), self.max_tokens)


class TaughtTraining(StudentConfig, OnlinePolicyConfig, TaughtConfig):
    """The settings of a policy that is trained on rewards and a teacher."""

    summary: ClassVar[tuple[str, ...]] = (*OnlineConfig.summary, "teacher_kl")

    @model_validator(mode="after")
    def _can_have_a_teacher(self) -> TaughtTraining:
        if isinstance(self.update, TrpoOptions):
            raise ValueError("update = trpo: its step is bounded only by the policy's loss. Use adamw")  # noqa: TRY004
        return self

    def objective(self) -> Objective:
        """Return the preset's objective plus the divergence."""
        return TaughtObjective(self, self.rollout.sampling.max_tokens)


class MixedSource(WrappedSource):
    """Steps on the student's samples or on demonstrations.

    `share` is the probability of samples (GKD, Agarwal 2023).
    """

    def __init__(self, samples: BatchSource, offline: EpochSource, share: float, seed: int) -> None:
        super().__init__(samples)
        self._offline, self._share, self._seed = offline, share, seed

    def batch(self, step: int) -> Batch:
        """Return the rows of one step. All rows are of one kind, which depends on the seed and the step."""
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + step)
        is_sampled = float(torch.rand((), generator=generator)) < self._share
        return (self._inner if is_sampled else self._offline).batch(step)


STUDENTS = Algorithms((DISTILL_ROWS, lambda _: DistillTraining), (POLICY_ROWS, lambda _: TaughtTraining))
"""Algorithm -> its settings with a teacher."""
