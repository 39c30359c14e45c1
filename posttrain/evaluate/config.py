"""The settings of an evaluation on samples. Calls use them directly, and stages add names."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field, model_validator

from posttrain.evaluate.completions_config import CompletionsConfig
from posttrain.rewards.catalog import MEASURED, SCORE, Metrics, Rewards, refuse_metrics, with_metrics
from posttrain.rewards.reward import WeightedReward
from posttrain.sampling.scored_config import ScoredSampling


class EvaluateConfig(CompletionsConfig, ScoredSampling):
    """How posttrain measures a policy on prompts.

    Example: `EvaluateConfig(reward={"correct": 1.0}, samples=4, sampling={"max_tokens": 200})`
    """

    reward: Annotated[Rewards, AfterValidator(refuse_metrics)] = Field(
        SCORE, description="weight of each reward by name; the score is the weighted sum"
    )
    metrics: Metrics = Field(
        MEASURED,
        description="rewards that are measured but not counted: [NAME, ...] or {NAME: {its options}}; if `reward` "
        "is set, the default is none",
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
    def _comparable(self) -> EvaluateConfig:
        if odd := [name for name, term in self.reward.items() if term.normalise]:
            raise ValueError(f"reward '{odd[0]}' has normalise: policies would not be comparable. Remove it")
        return self
