"""What runs of `online.runs` and `distill.runs` can be told, and the objective and source that follow from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from posttrain.algorithms.advantages import WinRateOptions
from posttrain.algorithms.distill_rows import DISTILL_ROWS, DistillRunKnobs
from posttrain.algorithms.objective import Objective
from posttrain.algorithms.policy import PolicyObjective
from posttrain.algorithms.policy_knobs import (
    PolicyKnobs,
    group_refusal,
    replay_refusal,
    reuse_refusal,
    truncation_refusal,
)
from posttrain.algorithms.policy_rows import POLICY_ROWS
from posttrain.algorithms.preference import PreferenceObjective
from posttrain.algorithms.sampled_rows import SAMPLED_ROWS, SampledBestKnobs, SampledPairKnobs
from posttrain.algorithms.supervised import DistillObjective, LikelihoodObjective
from posttrain.online.mixed import Shared, WithText
from posttrain.online.rollouts import RolloutParams, Rollouts, Shaping
from posttrain.online.selected import Selected, best_rule, pair_rule
from posttrain.params import Params
from posttrain.rewards.blend import LEARNED
from posttrain.slots import NONE, model_slot, table_of, table_slot
from posttrain.tables.store import read_table
from posttrain.text.chat import ChatText
from posttrain.train.batch import Source
from posttrain.train.epochs import Epochs
from posttrain.train.named import Algorithm
from posttrain.train.rows import demonstrations, windows
from posttrain.train.settings import TrainingParams


class OnlineParams(TrainingParams):
    """What every run that samples can be told."""

    algorithm: str = Field(description="a row of docs/algorithms.md")
    start: str = model_slot("the model it starts from")
    data: str = table_slot("prompts", description="the prompts it samples for")
    reward_model: str = model_slot("the reward model behind reward `model`", optional=True)
    reward: dict[str, float] = Field({"correct": 1.0, "format": 0.2}, description="weight of each reward by name")
    rollout: RolloutParams = Field(default_factory=RolloutParams)

    @model_validator(mode="after")
    def _reward_model_where_it_counts(self) -> OnlineParams:
        if (LEARNED in self.reward) != (self.reward_model != NONE):
            raise ValueError(
                f"reward_model = {self.reward_model} and reward = {self.reward}: a reward model is named where the "
                "reward `model` has a weight, and only there. Add it to reward, or set reward_model: none"
            )
        return self

    def objective(self) -> Objective:
        """What is learned."""
        raise NotImplementedError

    def shaping(self) -> Shaping:
        """What the algorithm asks of the sampling."""
        return Shaping()

    def source(self, samples: Rollouts, text: ChatText) -> Source:  # noqa: ARG002
        """What of the samples is learned from, and what is learned from beside them."""
        return samples

    def tables(self) -> list[Path]:
        """Tables that are read beside the prompts."""
        return []


class TextParams(Params):
    """Pretraining text next to the samples (PPO-ptx)."""

    rows: int = Field(8, ge=1, description="windows of text in each optimizer step")
    window: int = Field(64, ge=2, description="tokens per window")


class PolicyRun(OnlineParams, PolicyKnobs):
    """A policy objective on the policy's own samples."""

    corpus: str = table_slot("corpus", description="pretraining text, for ptx", optional=True)
    text: TextParams = Field(default_factory=TextParams)

    @model_validator(mode="after")
    def _fits_the_rollout(self) -> PolicyRun:
        size, epochs, replay = self.rollout.group_size, self.rollout.epochs, self.rollout.replay.groups
        reasons = {
            f"rollout.group_size = {size}": group_refusal(self, size),
            f"rollout.epochs = {epochs}": reuse_refusal(self, epochs),
            f"rollout.replay.groups = {replay}": replay_refusal(self, replay),
            "rollout.sampling": truncation_refusal(self.rollout.sampling.top_p, self.rollout.sampling.top_k),
        }
        refused = [f"{where}: {reason}" for where, reason in reasons.items() if reason]
        if refused and not self.allow_unsupported:
            raise ValueError(f"{'; '.join(refused)}, or allow_unsupported: true")
        if self.overlong is not None and self.overlong >= self.rollout.sampling.max_tokens:
            raise ValueError("overlong must be below rollout.sampling.max_tokens. Lower it")
        if self.text != TextParams() and not self.ptx:
            raise ValueError("text is read only where ptx is above 0, and ptx is 0 here. Remove text, or set ptx")
        if bool(self.ptx) != (self.corpus != NONE):
            raise ValueError(
                f"ptx = {self.ptx}, corpus = {self.corpus}: ptx learns a corpus. Set both, or corpus: none"
            )
        if self.ptx and self.rollout.sampling.temperature != 1:
            raise ValueError("ptx is the likelihood of text at temperature 1. Use rollout.sampling.temperature 1")
        return self

    def objective(self) -> Objective:
        """The row's surrogate; the longest completion is the constant of the fixed-length aggregation."""
        punished = () if self.overlong is None else (1.0,)  # the punishment is one more part of the reward
        return PolicyObjective(self, self.rollout.sampling.max_tokens, (*self.reward.values(), *punished))

    def shaping(self) -> Shaping:
        """Dynamic sampling, the punishment of length, opponents."""
        if isinstance(self.advantage, WinRateOptions):
            return Shaping(self.resample, self.overlong, opponents=True, mixture=self.advantage.mixture)
        return Shaping(self.resample, self.overlong)

    def source(self, samples: Rollouts, text: ChatText) -> Source:
        """The samples, with pretraining text beside them where ptx asks for it."""
        corpus = table_of(self.corpus)
        if corpus is None:
            return samples
        documents = read_table(corpus, "corpus").filter(split="train")["text"].to_list()
        return WithText(samples, windows(text, documents, self.text.window, str(corpus)), self.text.rows, self.seed)

    def tables(self) -> list[Path]:
        """The corpus, for ptx."""
        corpus = table_of(self.corpus)
        return [] if corpus is None else [corpus]


class SampledRun(OnlineParams):
    """A run on samples that reads no corpus; dvc.yaml needs the slot all the same."""

    corpus: Literal["none"] = Field(description="none: only policy objectives (ptx) read a corpus")


class SampledPairRun(SampledRun, SampledPairKnobs):
    """A preference objective on pairs of the policy's own samples."""

    @model_validator(mode="after")
    def _has_pairs(self) -> SampledPairRun:
        if self.rollout.group_size < 2:
            raise ValueError("rollout.group_size = 1: a pair is two samples of one prompt. Use 2 or more")
        return self

    def objective(self) -> Objective:
        """The preference row."""
        return PreferenceObjective(self)

    def shaping(self) -> Shaping:
        """All samples from the mixture (IPO-MD), or from the policy."""
        return Shaping(mixture=self.mixture)

    def source(self, samples: Rollouts, text: ChatText) -> Source:  # noqa: ARG002
        """The pairs that the rule chooses."""
        return Selected(samples, pair_rule(self.select, self.seed))


class SampledBestRun(SampledRun, SampledBestKnobs):
    """The likelihood of the policy's own best samples."""

    def objective(self) -> Objective:
        """The likelihood."""
        return LikelihoodObjective(self)

    def source(self, samples: Rollouts, text: ChatText) -> Source:  # noqa: ARG002
        """The samples that reach the rule's mark."""
        return Selected(samples, best_rule(self.select, self.rollout.minibatches * self.rollout.epochs))


class DistillRun(OnlineParams, DistillRunKnobs):
    """One run of `distill.runs`: a student that learns a teacher's distribution."""

    teacher: str = model_slot("the model that is learned from")
    demonstrations: str = table_slot("chat", description="given answers to learn from, for own below 1", optional=True)
    reward: dict[str, float] = Field({"correct": 1.0, "format": 0.2}, description="what is watched, not learned from")
    max_tokens: int = Field(256, ge=8, description="longer given rows are left out, and counted")

    @model_validator(mode="after")
    def _complete(self) -> DistillRun:
        if self.algorithm == "context_distill" and self.context is None:
            raise ValueError("context_distill needs context: the system turn that only the teacher sees")
        if self.context is None and self.teacher == self.start:
            raise ValueError(f"teacher and start are both '{self.start}', so there is nothing to learn. Name another")
        if self.own < 1 and self.demonstrations == NONE:
            raise ValueError(f"own = {self.own} learns from given answers too. Name a table of demonstrations")
        return self

    def objective(self) -> Objective:
        """The divergence."""
        return DistillObjective(self)

    def source(self, samples: Rollouts, text: ChatText) -> Source:
        """Own samples, given answers, or both by turns."""
        chat = table_of(self.demonstrations)
        if self.own == 1 or chat is None:
            return samples
        rows = read_table(chat, "chat").filter(split="train").iter_rows(named=True)
        size = max(self.rollout.prompts * self.rollout.group_size // self.rollout.minibatches, 1)
        given = Epochs(demonstrations(text, rows, self.max_tokens, str(chat)), size, 1, self.seed)
        return Shared(samples, given, self.own, self.seed)

    def tables(self) -> list[Path]:
        """The demonstrations, where given answers are learned from."""
        chat = table_of(self.demonstrations)
        return [] if chat is None else [chat]


def _sampled(model: type[Any]) -> type[OnlineParams]:
    return SampledPairRun if model is SampledPairKnobs else SampledBestRun


ONLINE: dict[str, Algorithm] = {
    **{name: Algorithm(row, PolicyRun) for name, row in POLICY_ROWS.items()},
    **{name: Algorithm(row, _sampled(row.model)) for name, row in SAMPLED_ROWS.items()},
}
DISTILL: dict[str, Algorithm] = {name: Algorithm(row, DistillRun) for name, row in DISTILL_ROWS.items()}
