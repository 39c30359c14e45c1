"""The settings of a policy that is sampled and scored, but not trained."""

from __future__ import annotations

from pathlib import Path

from posttrain.models.device import Runtime
from posttrain.rewards.config import ScoreConfig
from posttrain.rewards.score import RewardSum
from posttrain.sampling.frozen import FrozenSampling
from posttrain.text.chat import ChatText


class ScoredSampling(FrozenSampling, ScoreConfig):
    """The settings of samples and of their scores."""

    def scorer(
        self, runtime: Runtime | None, text: ChatText | None, reward_model: Path | None, where: str
    ) -> RewardSum:
        """Return the scorer of samples. `reward_model`: the folder of the model behind the reward `model`."""
        return self.scorer_of(runtime, text, reward_model, where, self.sampling.max_tokens)
