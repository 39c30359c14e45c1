"""The reward model of a call: a folder that a reward reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from posttrain.api.argument_checks import model_folder
from posttrain.errors import ParamsError
from posttrain.rewards.catalog import learned
from posttrain.rewards.config import ScoreConfig
from posttrain.rewards.reward import WeightedReward


def scorer_folder(config: ScoreConfig, reward_model: str | Path | None) -> Path | None:
    """Return the folder of the reward model.

    Reject a reward model that no reward uses, and a reward `model` without one.
    """
    if reward_model is None:
        refuse_learned(config.terms, "Give reward_model: the folder of one")
        return None
    refuse_unread(config.terms)
    return model_folder(reward_model, "reward_model")


def refuse_unread(terms: Mapping[str, WeightedReward]) -> None:
    """Reject a reward model that no reward uses."""
    if not learned(terms):
        what = f"no reward reads it: the rewards are {', '.join(terms)}"
        fix = 'Add the reward `model`, e.g. reward={"model": 1.0}, or remove reward_model'
        raise ParamsError(what=what, where="reward_model", fix=fix)


def refuse_learned(terms: Mapping[str, WeightedReward], fix: str) -> None:
    """Reject the reward `model` if the call gives no reward model."""
    if named := learned(terms):
        what = f"the reward '{next(iter(named))}' is the score of a reward model, and none is given"
        raise ParamsError(what=what, where="reward", fix=fix)
