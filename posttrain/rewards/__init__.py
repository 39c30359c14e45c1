"""Rewards score completions. For your own reward: `from posttrain.rewards import Params, Score, rule`."""

from posttrain.rewards.reward import Context, Examples, NoOptions, Reward, rule
from posttrain.rollout import Prompt, Rollout, Score
from posttrain.settings.params import Params

__all__ = ["Context", "Examples", "NoOptions", "Params", "Prompt", "Reward", "Rollout", "Score", "rule"]
