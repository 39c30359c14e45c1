"""The training loop, the sampler and the evaluation as Python functions, on models and tokenizers of transformers."""

from importlib import import_module
from typing import Any

_PLACES = {
    "Evaluation": "posttrain.api.evaluate",
    "LoggedRollouts": "posttrain.online.stored",
    "OfflineConfig": "posttrain.online.stored",
    "OnlineConfig": "posttrain.online.config",
    "ParamsError": "posttrain.errors",
    "PosttrainError": "posttrain.errors",
    "PreferenceTraining": "posttrain.supervised.config",
    "RewardTraining": "posttrain.supervised.config",
    "Samples": "posttrain.api.model",
    "SftConfig": "posttrain.supervised.config",
    "Trained": "posttrain.train.trained",
    "evaluate_model": "posttrain.api.evaluate",
    "load_model": "posttrain.api.model",
    "load_models": "posttrain.api.models",
    "load_reward_model": "posttrain.api.reward_model",
    "reward_model": "posttrain.api.reward_model",
    "sample": "posttrain.api.model",
    "score": "posttrain.api.reward_model",
    "train_model": "posttrain.api.train",
    "train_on_rollouts": "posttrain.online.stored",
    "train_online": "posttrain.api.online",
}
"""Public name -> the module that has it, which is imported when the name is first used."""
__all__ = list(_PLACES)


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in _PLACES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(import_module(_PLACES[name]), name)
