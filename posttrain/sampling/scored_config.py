"""The settings of a policy that is sampled and scored, but not trained."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from posttrain.models.device import Runtime
from posttrain.rewards.catalog import SCORE, Rewards
from posttrain.rewards.failures import MAX_FAILED, MaxFailed, OnFailures, wait_above
from posttrain.rewards.given import with_terms
from posttrain.rewards.reward import Context, WeightedReward
from posttrain.rewards.score import RewardSum
from posttrain.sampling.frozen import FrozenSampling
from posttrain.text.chat import ChatText


class ScoredSampling(FrozenSampling):
    """The settings of samples and of their scores."""

    reward: Rewards = Field(SCORE, description="weight of each reward by name; the score is the weighted sum")
    max_failed: MaxFailed = MAX_FAILED
    on_failures: OnFailures = "end"

    @field_validator("reward", mode="before")
    @classmethod
    def _functions(cls, given: Any) -> Any:
        """Accept functions, which a script may pass."""
        return with_terms({"reward": given})["reward"]

    @property
    def terms(self) -> Mapping[str, WeightedReward]:
        """All rewards and metrics of the samples."""
        return self.reward

    def scorer(self, runtime: Runtime, text: ChatText | None, reward_model: Path | None, where: str) -> RewardSum:
        """Return the scorer of samples. `reward_model`: the folder of the model behind the reward `model`."""
        context = Context(runtime, where, reward_model, text, self.sampling.max_tokens)
        return RewardSum(dict(self.terms), context, wait_above(self.on_failures, self.max_failed))
