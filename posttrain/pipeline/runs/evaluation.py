"""`evaluate.settings` and `evaluate.policies` of params.yaml."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from posttrain.data.columns import Split
from posttrain.errors import ParamsError
from posttrain.evaluate.context import Completions, ContextTurn, check_turns
from posttrain.evaluate.intervals import SEED
from posttrain.models.device import DeviceParams
from posttrain.pipeline.params.params_file import at, read
from posttrain.pipeline.params.slots import MODEL, PART, model_slot, table_slot
from posttrain.pipeline.workspace import PARAMS_FILE
from posttrain.rewards.catalog import (
    MEASURED,
    SCORE,
    Metrics,
    Rewards,
    need_reward_model,
    refuse_metrics,
    with_metrics,
)
from posttrain.rewards.failures import MAX_FAILED, MaxFailed, OnFailures
from posttrain.rewards.reward import WeightedReward
from posttrain.sampling.engines import ENGINE, EngineArgs, EngineName, Servers, refuse_sampling
from posttrain.sampling.sampler import SamplingParams
from posttrain.settings.params import Params
from posttrain.settings.plain import NONE
from posttrain.text.chat import DATE, TemplateDate, TemplateVariables


class EvaluateParams(Params):
    """`evaluate.settings`: how policies are measured."""

    data: str = table_slot("prompts", description="the prompts that policies are measured on")
    reference: str = model_slot("the model that KL is measured against", optional=True)
    reward_model: str = model_slot("the reward model behind reward `model`", optional=True, scores=True)
    split: Split = Field("test", description="the prompts' split; test has a generator seed of its own")
    prompts: int = Field(500, ge=2, description="prompts, from the top of the split")
    samples: int = Field(8, ge=1, description="samples of each prompt")
    kl_samples: int | None = Field(
        None,
        ge=1,
        description="samples of each prompt that KL is measured on; null: all. It takes about as long as sampling them",
    )
    seed: int = Field(SEED, ge=0, description="the samples' random numbers; a seed that no training uses")
    sampling: SamplingParams = Field(default_factory=SamplingParams)
    engine: EngineName = ENGINE
    engine_args: EngineArgs = Field(default_factory=dict)
    engine_servers: Servers = 1
    device: DeviceParams = Field(default_factory=DeviceParams)
    date: TemplateDate = Field(DATE, description="what a chat template that asks for today's date gets")
    template: TemplateVariables = Field(
        default_factory=dict, description="what the chat template reads in this run, e.g. {enable_thinking: false}"
    )
    context: Annotated[list[ContextTurn], AfterValidator(check_turns)] = Field(
        default_factory=list,
        description="turns before each prompt, e.g. [{role: system, content: ...}] and examples: user, assistant, ...",
    )
    reward: Annotated[Rewards, AfterValidator(refuse_metrics)] = Field(
        SCORE, description="weight of each reward by name; the weighted sum is the score"
    )
    metrics: Metrics = Field(
        MEASURED,
        description="rewards that are measured next to the score: [NAME, ...] or {NAME: {its options}}; where `reward` "
        "is set, the default is none",
    )
    must_not_fall: list[str] = Field(
        default_factory=list,
        description="metrics, or parts of `reward`, that `compare` and `promote` watch: where one is clearly lower, "
        "compare says so and promote refuses",
    )
    max_failed: MaxFailed = MAX_FAILED
    on_failures: OnFailures = "end"
    completions: Completions = Field(
        "full", description="the prompts and completions that results/ and report/ keep: all, those of 20 prompts, none"
    )

    @model_validator(mode="before")
    @classmethod
    def _own_reward_own_metrics(cls, given: Any) -> Any:
        return {"metrics": {}, **given} if isinstance(given, dict) and "reward" in given else given

    @property
    def terms(self) -> dict[str, WeightedReward]:
        """The rewards and the metrics."""
        return with_metrics(self.reward, self.metrics)

    @model_validator(mode="after")
    def _guards_what_is_measured(self) -> EvaluateParams:
        if odd := [name for name in self.must_not_fall if name not in self.terms]:
            known = ", ".join(self.terms)
            raise ValueError(f"must_not_fall: '{odd[0]}' is not measured. Add it to metrics, or name one of {known}")
        return self

    @model_validator(mode="after")
    def _within_the_engine(self) -> EvaluateParams:
        refuse_sampling(self.engine, self.sampling, self.engine_args, self.engine_servers)
        return self

    @model_validator(mode="after")
    def _reward_model_where_it_counts(self) -> EvaluateParams:
        need_reward_model(self.terms, self.reward_model)
        if odd := [name for name, term in self.reward.items() if term.normalise]:
            raise ValueError(f"reward '{odd[0]}' has normalise: policies would not be comparable. Remove it")
        return self


SAMPLING = frozenset(
    {"samples", "kl_samples", "sampling", "engine", "engine_args", "engine_servers", "context", "reward"}
    | {"metrics", "must_not_fall", "max_failed", "on_failures"}
)
"""The settings of samples, which a likelihood does not read."""


class EvaluateRun(EvaluateParams):
    """One run of `evaluate.runs`: one policy on a table of its own, by its samples or by likelihoods."""

    policy: str = model_slot("the policy; for a table of pairs also a reward model", scores=None)
    data: str = table_slot("prompts", "pairs", "corpus", description="what it is measured on")
    by: Literal["samples", "likelihood"] = Field(
        "samples",
        description="samples of prompts and their reward; or likelihoods, as always of a corpus (bits per byte) and of "
        "pairs (which answer is likelier, or scores higher). Of prompts: which option in the column `info` is the "
        'likeliest, e.g. {"options": ["Paris", "Rome"]}',
    )

    @model_validator(mode="before")
    @classmethod
    def _of_its_table(cls, given: Any) -> Any:
        """Take the split and the way to measure that the kind of table has."""
        kind = str(given.get("data", "")).rpartition("/")[2] if isinstance(given, dict) else "prompts"
        return {"split": "heldout", "by": "likelihood", **given} if kind in ("pairs", "corpus") else given

    @model_validator(mode="after")
    def _read_by_what_is_measured(self) -> EvaluateRun:
        kind = self.data.rpartition("/")[2]
        if kind != "prompts" and (self.by == "samples" or self.split == "test"):
            raise ValueError(f"a table of {kind} has no prompts to sample and no split test. Remove by and split")
        if self.by == "samples":
            return self
        unread = {name for name in SAMPLING & self.model_fields_set if getattr(self, name) is not None}
        unread |= {"reward_model"} if self.reward_model != NONE else set()
        unread |= {"reference"} if kind != "pairs" and self.reference != NONE else set()
        if unread:
            raise ValueError(
                f"{', '.join(sorted(unread))}: not read where likelihoods are measured. Remove it, or none"
            )
        return self


def load_policies() -> dict[str, str]:
    """Label -> model of the policies that params.yaml evaluates."""
    policies = at(read(), "evaluate.policies")
    odd = [f"{label!r}: {name!r}" for label, name in policies.items() if not _right_policy(label, name)]
    if odd:
        what = f"evaluate.policies has {', '.join(odd)[:300]}"
        fix = "Write LABEL: MODEL, a short name and a folder under models/, e.g. grpo: online/grpo"
        raise ParamsError(what=what, where=PARAMS_FILE, fix=fix)
    return dict(policies)


def _right_policy(label: object, name: object) -> bool:
    texts = isinstance(label, str) and isinstance(name, str)
    return texts and bool(re.fullmatch(PART, str(label)) and re.fullmatch(MODEL, str(name))) and name != NONE
