"""The settings of `online.runs`: settings of training on the policy's own samples, and names of its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import Field, model_validator

from posttrain.algorithms.policy_config import POLICY_ROWS
from posttrain.api.models import models_from
from posttrain.data.splits import check_enough_prompts, training_prompts
from posttrain.errors import DataError
from posttrain.models.files.text import load_text
from posttrain.online.config import OnlineConfig, OnlinePolicyConfig
from posttrain.online.run import OnlineRun
from posttrain.online.sampled import SAMPLED_ROWS
from posttrain.pipeline.params.params_file import at, read
from posttrain.pipeline.params.slots import model_of, model_slot, table_of, table_slot
from posttrain.pipeline.runs.training import RunInputs
from posttrain.pipeline.tables.store import read_table
from posttrain.pipeline.workspace import table_path
from posttrain.rewards.catalog import need_reward_model
from posttrain.rewards.scorable import refuse_unread, scorable_prompts, unread_in
from posttrain.rollout import Prompt
from posttrain.sampling.sampler import check_capacity, encode_prompts, prompts_of
from posttrain.settings.plain import NONE
from posttrain.text.chat import ChatText
from posttrain.train.batch_sources import Example
from posttrain.train.model_set import ModelSet
from posttrain.train.run_config import Algorithms
from posttrain.train.tokenize_tables import windows


class OnlineParams(OnlineConfig):
    """The names of inputs in every run of `online.runs`."""

    start: str = model_slot("the start model")
    data: str = table_slot("prompts", description="the prompts to sample for")
    reward_model: str = model_slot("the reward model behind reward `model`", optional=True, scores=True)

    @model_validator(mode="after")
    def _reward_model_where_it_counts(self) -> OnlineParams:
        watched = {} if self.watch is None else self.watch.terms
        need_reward_model({**watched, **self.reward}, self.reward_model)
        return self

    def tables(self) -> list[Path]:
        """The tables that the run reads in addition to its prompts."""
        return []

    def examples(self, text: ChatText) -> Sequence[Example]:  # noqa: ARG002
        """Return the rows of these tables, which are trained on in addition to the samples."""
        return ()


class SampledNames(OnlineParams):
    """The input names of a run on selected samples. dvc.yaml needs the slot `corpus`, which is unused here."""

    corpus: Literal["none"] = Field(description="none: only policy objectives (ptx) use a corpus")


class PolicyRun(OnlinePolicyConfig, OnlineParams):
    """A run of a policy objective on the policy's own samples."""

    corpus: str = table_slot("corpus", description="pretraining text, for ptx", optional=True)
    critic: Literal["start", "reward_model"] = Field(
        "start", description="the critic's start: `start` with a new head, or the reward model with its own head"
    )

    @model_validator(mode="after")
    def _names_what_it_reads(self) -> PolicyRun:
        if self.critic == "reward_model" and (self.reward_model == NONE or not self.advantage_entry.valued):
            raise ValueError(
                "critic = reward_model: set reward_model to a model, and use an advantage with a critic, e.g. ppo"
            )
        if self.critic == "reward_model" and self.adapter.type != "none":
            raise ValueError(
                "critic = reward_model: with an adapter, the critic shares the policy's weights. Use start"
            )
        if bool(self.ptx) != (self.corpus != NONE):
            raise ValueError(
                f"ptx = {self.ptx}, corpus = {self.corpus}: ptx trains on a corpus. Set both, or corpus: none"
            )
        return self

    @property
    def critic_start(self) -> Path | None:
        """The reward model, if the critic starts from it."""
        return None if self.critic == "start" else model_of(self.reward_model, "reward_model")

    def examples(self, text: ChatText) -> Sequence[Example]:
        """Return the corpus in windows, for ptx."""
        corpus = table_of(self.corpus)
        if corpus is None:
            return ()
        return windows(text, read_table(corpus, "corpus").filter(split="train"), self.text.window, str(corpus))

    def tables(self) -> list[Path]:
        """Return the corpus file, for ptx."""
        corpus = table_of(self.corpus)
        return [] if corpus is None else [corpus]


@cache
def named(config: type[OnlineConfig]) -> type[OnlineParams]:
    """Return a settings class for selected samples that includes the names of a run's inputs."""
    made = type(config.__name__, (config, SampledNames), {"__module__": __name__, "__doc__": config.__doc__})
    return cast("type[OnlineParams]", made)


ONLINE = Algorithms((POLICY_ROWS, lambda _: PolicyRun), (SAMPLED_ROWS, lambda row: named(row.run)))


def online_run(reads: RunInputs[Any]) -> OnlineRun:
    """Read the inputs of a run of `online.runs` (prompts, models, reward model) and return the run."""
    params, section = reads.params, reads.section
    start, table = reads.start(params.start), reads.table(params.data)
    rows = training_prompts(read_table(table, "prompts"), table)
    if at(read(), section).get("reward") is None:
        refuse_unread(unread_in(rows, params.reward["correct"]), section, f"of {table}")
    text = load_text(start, params.date, params.template)
    asked = encode_prompts(text, prompts_of(rows.iter_rows(named=True)))
    prompts = scorable_prompts(params.reward, asked, str(table))
    models = models_from(start, params)
    if params.critic_start is not None and not load_text(params.critic_start).same_as(load_text(start)):
        what, fix = "its tokens or chat template are not the policy's", "Use a reward model that was trained from it"
        raise DataError(what=what, where=f"{section}.critic", fix=fix)
    return with_names(reads, text, prompts, models)


def with_names(reads: RunInputs[Any], text: ChatText, prompts: Sequence[Prompt], models: ModelSet) -> OnlineRun:
    """Read the remaining inputs of a run, given its prompts and models, and return the run."""
    params = reads.params
    heldout = heldout_prompts(params, text, reads.section)
    scorer = model_of(params.reward_model, f"{reads.section}.reward_model")
    for path in (*params.tables(), *([] if scorer is None else [scorer])):
        reads.reads(path)
    return OnlineRun(reads.name, params, text, prompts, models, heldout, scorer, params.examples(text))


def heldout_prompts(params: OnlineParams, text: ChatText, section: str) -> list[Prompt]:
    """Return the held-out prompts of the run's table for `watch`; empty without `watch`."""
    watch, table = params.watch, table_path(params.data)
    if watch is None:
        return []
    where = f"{section}.watch"
    rows = read_table(table, "prompts").filter(split="heldout").iter_rows(named=True)
    encoded = encode_prompts(text, prompts_of(rows))
    prompts = scorable_prompts(watch.reward, encoded, str(table))[: watch.prompts]
    check_enough_prompts(len(prompts), "heldout", table, of=len(encoded))
    if len(prompts) < watch.prompts:
        print(f"{where}.prompts = {watch.prompts}: {table} has {len(prompts)} held-out prompts, which are all used")
    lengths, sampling = [prompt.ids for prompt in prompts], params.rollout.sampling
    check_capacity(text.context, lengths, len(prompts) * watch.samples, sampling, where)
    return prompts
