"""The training loop, the sampler and the evaluation as Python functions for transformers models and tokenizers."""

from importlib import import_module
from typing import Any

_PLACES = {
    "CompletionsConfig": "evaluate.completions_config",
    "EvaluateConfig": "evaluate.config",
    "Evaluation": "evaluate.policy",
    "LoggedRollouts": "online.stored",
    "OfflineConfig": "online.stored",
    "OnlineConfig": "online.config",
    "ParamsError": "errors",
    "PosttrainError": "errors",
    "PreferenceTraining": "supervised.preference",
    "Regraded": "api.regraded",
    "RewardTraining": "supervised.reward",
    "ScoreConfig": "rewards.config",
    "SampleConfig": "sampling.scored",
    "SampledCompletions": "evaluate.sampled",
    "Samples": "api.model",
    "ScoredSamples": "sampling.scored",
    "SftConfig": "supervised.sft",
    "Trained": "train.trained",
    "StudentConfig": "online.distill",
    "distill": "api.teacher",
    "evaluate_likelihood": "api.likelihood",
    "evaluate_model": "api.evaluate",
    "load_frozen": "sampling.frozen",
    "load_model": "api.model",
    "load_models": "api.models",
    "load_reward_model": "api.scorers",
    "regrade": "api.regraded",
    "reward_model": "api.scorers",
    "sample": "api.model",
    "sample_and_score": "api.scored",
    "sample_completions": "api.completions",
    "score": "api.scorers",
    "score_completions": "api.evaluate",
    "train_model": "api.train",
    "train_on_rollouts": "api.stored",
    "train_online": "api.online",
}
"""Public name -> the module below `posttrain` that defines it. The module is imported on first use of the name."""
__all__ = list(_PLACES)


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name not in _PLACES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(import_module(f"posttrain.{_PLACES[name]}"), name)
