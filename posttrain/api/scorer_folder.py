"""The reward model of a call: a folder that a reward reads."""

from __future__ import annotations

from pathlib import Path

from posttrain.api.argument_checks import model_folder
from posttrain.rewards.catalog import refuse_learned, refuse_unread_model
from posttrain.rewards.config import ScoreConfig


def scorer_folder(config: ScoreConfig, reward_model: str | Path | None) -> Path | None:
    """Return the folder of the reward model.

    Reject a reward model that no reward uses, and a reward `model` without one.
    """
    if reward_model is None:
        refuse_learned(config.terms, "Give reward_model: the folder of a reward model")
        return None
    refuse_unread_model(config.terms)
    return model_folder(reward_model, "reward_model")
