"""Post-training of language models: a pipeline of DVC stages, and its training loop, sampler and losses in Python.

    model, tokenizer = posttrain.load_model("models/sft/main")
    posttrain.train_model(model, tokenizer, rows, "dpo", optimizer={"lr": 1e-5})
    posttrain.train_online(model, tokenizer, prompts, reward, "grpo")
    posttrain.distill(model, tokenizer, "models/large", prompts)
    print(posttrain.sample(model, tokenizer, ["What is 2 + 3?"], n=4).texts)
    print(posttrain.evaluate_model(model, tokenizer, heldout, reward).metrics["score"])

`posttrain.losses` has only the losses, for your own training loop.
"""

from typing import Any

__all__ = [
    "CompletionsConfig",
    "EvaluateConfig",
    "Evaluation",
    "LoggedRollouts",
    "OfflineConfig",
    "OnlineConfig",
    "ParamsError",
    "PosttrainError",
    "PreferenceTraining",
    "Regraded",
    "RewardTraining",
    "SampleConfig",
    "SampledCompletions",
    "Samples",
    "ScoreConfig",
    "ScoredSamples",
    "SftConfig",
    "StudentConfig",
    "Trained",
    "__version__",
    "distill",
    "evaluate_likelihood",
    "evaluate_model",
    "fix_numerics",
    "load_frozen",
    "load_model",
    "load_models",
    "load_reward_model",
    "losses",
    "regrade",
    "reward_model",
    "sample",
    "sample_and_score",
    "sample_completions",
    "score",
    "score_completions",
    "train_model",
    "train_on_rollouts",
    "train_online",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use, because importing torch takes seconds."""
    from importlib import import_module
    from importlib.metadata import version

    if name == "__version__":
        return version(__name__)
    if name == "fix_numerics":
        return import_module(f"{__name__}.numerics").fix_numerics
    if name == "losses":
        return import_module(f"{__name__}.losses")
    if name in __all__:
        return getattr(import_module(f"{__name__}.api"), name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
