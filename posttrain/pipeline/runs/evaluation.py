"""`evaluate.settings` and `evaluate.policies` of params.yaml."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field, model_validator

from posttrain.data.columns import Split
from posttrain.errors import ParamsError
from posttrain.evaluate.config import EvaluateConfig
from posttrain.evaluate.context import Completions
from posttrain.pipeline.params.params_file import at, read
from posttrain.pipeline.params.slots import MODEL, PART, model_slot, table_slot
from posttrain.pipeline.workspace import PARAMS_FILE
from posttrain.rewards.catalog import need_reward_model
from posttrain.settings.plain import NONE


class EvaluateParams(EvaluateConfig):
    """`evaluate.settings`: how policies are evaluated, and on which inputs."""

    data: str = table_slot("prompts", description="the prompts of the evaluation")
    reference: str = model_slot("the reference model for the KL", optional=True)
    reward_model: str = model_slot("the reward model behind reward `model`", optional=True, scores=True)
    split: Split = Field("test", description="the split of the prompts; test has its own generator seed")
    prompts: int = Field(500, ge=2, description="prompts from the start of the split")
    must_not_fall: list[str] = Field(
        default_factory=list,
        description="metrics, or parts of `reward`, that `compare` and `promote` watch: if one is clearly lower, "
        "compare reports it and promote fails",
    )
    completions: Completions = Field(
        "full",
        description="whose prompts and completions results/ and report/ store: all, those of 20 prompts, or none",
    )

    @model_validator(mode="after")
    def _guards_what_is_measured(self) -> EvaluateParams:
        if odd := [name for name in self.must_not_fall if name not in self.terms]:
            known = ", ".join(self.terms)
            raise ValueError(f"must_not_fall: '{odd[0]}' is not measured. Add it to metrics, or name one of {known}")
        return self

    @model_validator(mode="after")
    def _reward_model_where_it_counts(self) -> EvaluateParams:
        need_reward_model(self.terms, self.reward_model)
        return self


SAMPLING = frozenset(
    {"samples", "kl_samples", "sampling", "engine", "engine_args", "engine_servers", "context", "reward"}
    | {"metrics", "must_not_fall", "max_failed", "on_failures"}
)
"""The settings for samples. An evaluation by likelihood does not read them."""


class EvaluateRun(EvaluateParams):
    """One run of `evaluate.runs`: one policy on its own table, by samples or by likelihoods."""

    policy: str = model_slot("the policy; for a table of pairs also a reward model", scores=None)
    data: str = table_slot("prompts", "pairs", "corpus", description="the table to evaluate on")
    by: Literal["samples", "likelihood"] = Field(
        "samples",
        description="samples: sample completions and score them. likelihood: bits per byte of a corpus; which "
        "answer of a pair is likelier or scores higher; which option of a prompt (column `info`) is the likeliest, "
        'e.g. {"options": ["Paris", "Rome"]}. Corpora and pairs always use likelihood',
    )

    @model_validator(mode="before")
    @classmethod
    def _of_its_table(cls, given: Any) -> Any:
        """Set the default split and method for the kind of table."""
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
    """Return label -> model of the policies that params.yaml evaluates."""
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
