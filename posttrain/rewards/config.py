"""The settings of scores, without the settings of sampling."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from posttrain.models.device import DeviceParams, Runtime
from posttrain.rewards.catalog import SCORE, Rewards
from posttrain.rewards.failures import MAX_FAILED, MaxFailed, OnFailures, wait_above
from posttrain.rewards.given import with_terms
from posttrain.rewards.reward import Context, WeightedReward
from posttrain.rewards.score import RewardSum
from posttrain.settings.called import Called
from posttrain.settings.params import Params
from posttrain.text.chat import ChatText


class ScoreConfig(Params, metaclass=Called):
    """How completions are scored.

    Example: `ScoreConfig(reward={"correct": {"answer": "math"}})`
    """

    reward: Rewards = Field(SCORE, description="weight of each reward by name; the score is the weighted sum")
    max_failed: MaxFailed = MAX_FAILED
    on_failures: OnFailures = "end"
    device: DeviceParams = Field(default_factory=DeviceParams)

    @field_validator("reward", mode="before")
    @classmethod
    def _functions(cls, given: Any) -> Any:
        """Accept functions, which a script may pass."""
        return with_terms({"reward": given})["reward"]

    @property
    def terms(self) -> Mapping[str, WeightedReward]:
        """All rewards and metrics of the samples."""
        return self.reward

    def scorer_of(
        self,
        runtime: Runtime | None,
        text: ChatText | None,
        reward_model: Path | None,
        where: str,
        max_tokens: int | None,
    ) -> RewardSum:
        """Return the scorer of completions.

        `text`: the policy's tokenizer and template. `reward_model`: the folder of the model behind the reward `model`.
        `max_tokens`: the most tokens of a completion.
        """
        context = Context(runtime, where, reward_model, text, max_tokens)
        return RewardSum(dict(self.terms), context, wait_above(self.on_failures, self.max_failed))
