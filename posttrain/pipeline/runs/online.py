"""The settings of `online.runs`: those of a training on own samples, and the names of what it reads."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal, cast

from pydantic import Field, model_validator

from posttrain.algorithms.policy_config import POLICY_ROWS
from posttrain.online.config import OnlineConfig, OnlinePolicyConfig
from posttrain.online.ptx import PtxSource
from posttrain.online.run import Loaded, section_of
from posttrain.online.sampled import SAMPLED_ROWS
from posttrain.pipeline.params.slots import model_of, model_slot, table_of, table_slot
from posttrain.pipeline.tables.store import read_table
from posttrain.rewards.catalog import need_reward_model
from posttrain.settings.plain import NONE
from posttrain.text.chat import ChatText
from posttrain.train.batch_sources import BatchSource
from posttrain.train.run_config import Algorithms
from posttrain.train.tokenize_tables import windows


class OnlineParams(OnlineConfig):
    """The names that every run of `online.runs` has."""

    start: str = model_slot("the model it starts from")
    data: str = table_slot("prompts", description="the prompts it samples for")
    reward_model: str = model_slot("the reward model behind reward `model`", optional=True, scores=True)

    @model_validator(mode="after")
    def _reward_model_where_it_counts(self) -> OnlineParams:
        watched = {} if self.watch is None else self.watch.terms
        need_reward_model({**watched, **self.reward}, self.reward_model)
        return self

    def tables(self) -> list[Path]:
        """Tables that the run reads in addition to its prompts."""
        return []


class SampledNames(OnlineParams):
    """The names of a run on a selection of its samples; dvc.yaml needs the slot of the corpus all the same."""

    corpus: Literal["none"] = Field(description="none: only policy objectives (ptx) read a corpus")


class PolicyRun(OnlinePolicyConfig, OnlineParams):
    """A policy objective on the policy's own samples."""

    corpus: str = table_slot("corpus", description="pretraining text, for ptx", optional=True)
    critic: Literal["start", "reward_model"] = Field(
        "start", description="what the critic starts from: `start` with a new head, or the reward model with its own"
    )

    @model_validator(mode="after")
    def _names_what_it_reads(self) -> PolicyRun:
        if self.critic == "reward_model" and (self.reward_model == NONE or not self.advantage_entry.valued):
            raise ValueError(
                "critic = reward_model: name one in reward_model, and an advantage with a critic, e.g. ppo"
            )
        if self.critic == "reward_model" and self.adapter.type != "none":
            raise ValueError("critic = reward_model: with an adapter the critic shares the policy's weights. Use start")
        if bool(self.ptx) != (self.corpus != NONE):
            raise ValueError(
                f"ptx = {self.ptx}, corpus = {self.corpus}: ptx learns a corpus. Set both, or corpus: none"
            )
        return self

    @property
    def critic_start(self) -> Path | None:
        """The reward model, where the critic starts from it."""
        return None if self.critic == "start" else model_of(self.reward_model, "reward_model")

    def source(self, samples: BatchSource, text: ChatText) -> BatchSource:
        """Return the samples, with pretraining text added where ptx asks for it."""
        corpus = table_of(self.corpus)
        if corpus is None:
            return samples
        documents = read_table(corpus, "corpus").filter(split="train")
        return PtxSource(samples, windows(text, documents, self.text.window, str(corpus)), self.text.rows, self.seed)

    def tables(self) -> list[Path]:
        """Return the corpus, for ptx."""
        corpus = table_of(self.corpus)
        return [] if corpus is None else [corpus]


@cache
def named(config: type[OnlineConfig]) -> type[OnlineParams]:
    """Return the settings of a selection of samples, with the names of what a run of it reads."""
    made = type(config.__name__, (config, SampledNames), {"__module__": __name__, "__doc__": config.__doc__})
    return cast("type[OnlineParams]", made)


ONLINE = Algorithms((POLICY_ROWS, lambda _: PolicyRun), (SAMPLED_ROWS, lambda row: named(row.run)))


def reward_model_of(name: str, params: OnlineParams) -> Path | None:
    """Return the folder of the run's reward model, if it has one."""
    return model_of(params.reward_model, f"{section_of(name)}.reward_model")


def inputs_of(name: str, params: OnlineParams, read: Loaded) -> list[Path]:
    """Return the files and folders that a run reads: with its settings they name its checkpoints."""
    reward_model = reward_model_of(name, params)
    return [*read.inputs, *params.tables(), *([reward_model] if reward_model else [])]
