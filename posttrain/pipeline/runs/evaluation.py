"""The settings in `evaluate` for completions and for their scores."""

from __future__ import annotations

from pydantic import Field, model_validator

from posttrain.evaluate.config import EvaluateConfig
from posttrain.pipeline.params.slots import model_slot
from posttrain.pipeline.runs.sampled_evaluation import SampledParams, SampledRun
from posttrain.rewards.catalog import need_reward_model
from posttrain.settings.plain import NONE


class EvaluateParams(SampledParams, EvaluateConfig):
    """`evaluate.settings`: method and inputs of the evaluation of policies."""

    reward_model: str = model_slot("the reward model behind reward `model`", optional=True, scores=True)
    must_not_fall: list[str] = Field(
        default_factory=list,
        description="metrics, or parts of `reward`, that `compare` and `promote` watch: if one is clearly lower, "
        "compare reports it and promote fails",
    )

    @model_validator(mode="after")
    def _guards_what_is_measured(self) -> EvaluateParams:
        if odd := [name for name in self.must_not_fall if name not in self.terms]:
            known = ", ".join(self.terms)
            raise ValueError(f"must_not_fall: '{odd[0]}' is not measured. Add it to metrics, or use one of {known}")
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


class EvaluateRun(SampledRun, EvaluateParams):
    """One run of `evaluate.runs`: one policy on its own table, by samples or by likelihoods."""

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
                f"{', '.join(sorted(unread))}: without effect if by is likelihood. Remove it, or set it to none"
            )
        return self
