"""The settings in `evaluate` that determine the sampled completions, separate from settings that only score them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from posttrain.data.columns import Split
from posttrain.errors import ParamsError
from posttrain.evaluate.completions_config import CompletionsConfig
from posttrain.evaluate.context import Completions
from posttrain.pipeline.params.params_file import at, read
from posttrain.pipeline.params.slots import MODEL, PART, model_slot, table_slot
from posttrain.pipeline.params.stage_table import SCORING
from posttrain.pipeline.workspace import PARAMS_FILE
from posttrain.settings.params import M, check
from posttrain.settings.plain import NONE


class SampledParams(CompletionsConfig):
    """The settings of completions in `evaluate.settings`."""

    data: str = table_slot("prompts", description="the prompts of the evaluation")
    reference: str = model_slot("the reference model for the KL", optional=True)
    split: Split = Field("test", description="the split of the prompts; test prompts have a separate generator seed")
    prompts: int = Field(500, ge=2, description="prompts from the start of the split")
    completions: Completions = Field(
        "full",
        description="prompts and completions to store in completions/, results/ and report/: all, of 20 prompts, or "
        "none. Unless all are stored, a change of the reward samples again",
    )

    @property
    def are_stored(self) -> bool:
        """True if all completions are stored, so that they can be scored later."""
        return self.completions == "full"


class SampledRun(SampledParams):
    """The settings of completions in a run of `evaluate.runs`."""

    policy: str = model_slot("the policy; for a table of pairs, it may be a reward model", scores=None)
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

    @property
    def are_stored(self) -> bool:
        """True if it has completions and all are stored."""
        return self.by == "samples" and self.completions == "full"


def load_sampled(model: type[M], section: str) -> M:
    """Return the settings of completions in a section of params.yaml, without the settings of scores."""
    value = at(read(), section)
    settings = {key: value[key] for key in value if key not in SCORING} if isinstance(value, Mapping) else value
    return check(model, {} if settings is None else settings, where=section)


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
