"""Measure a model on prompts with rewards, in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from posttrain.api.argument_checks import check_config, model_folder
from posttrain.api.given import prompts_given, refuse_learned, refuse_unread
from posttrain.api.own_model import Messages, device_of, our_attention, own_model, text_of
from posttrain.errors import ParamsError
from posttrain.evaluate.config import EvaluateConfig
from posttrain.evaluate.intervals import SEED
from posttrain.evaluate.policy import Evaluation, PolicyEvaluation, refuse_truncation
from posttrain.models.device import Runtime
from posttrain.models.master_weights import computing
from posttrain.rewards.given import terms_given
from posttrain.rewards.scorable import scorable_prompts
from posttrain.rollout import Prompt
from posttrain.sampling.engines import SampledModel
from posttrain.sampling.frozen import OpenSampler, ScoredSampling
from posttrain.settings.params import check

NAME = "evaluate_model"


def evaluate_model(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[str | Messages | Mapping[str, Any] | Prompt],
    reward: Any = None,
    *,
    samples: int = 8,
    max_tokens: int = 64,
    temperature: float = 1.0,
    seed: int = SEED,
    sampling: Mapping[str, Any] | None = None,
    max_failed: float = 0.0,
    config: EvaluateConfig | None = None,
    reference: Any | None = None,
    reward_model: str | Path | None = None,
    sampler: OpenSampler | None = None,
    name: str = NAME,
    where: str = NAME,
) -> Evaluation:
    """Sample each prompt several times and once greedily, score the completions, and return the metrics.

    model, tokenizer: from transformers; or the policy from `load_frozen`, and None. prompts and reward: as in
    `train_online`. seed: the default is a seed that no training uses, so that two models are compared on the same
    random numbers. sampling: other keys of a run's `sampling`, e.g. `{"top_p": 0.9}`. max_failed: the largest share of
    completions that a reward may fail to score. config: all settings as one typed object, instead of these arguments.

    reference: a model (or its folder) for measuring KL. reward_model: the folder of the model behind the reward
    `model`. sampler: opens the sampler; the default is the engine in the settings. name, where: names of the evaluation
    and of its settings in messages.

    Example: `evaluate_model(model, tokenizer, prompts, {"correct": 1.0}).metrics["score"]`
    """
    if config is None:
        own = {"samples": samples, "seed": seed, "max_failed": max_failed, **_scored_by(reward)}
        own["sampling"] = {"max_tokens": max_tokens, "temperature": temperature, **(sampling or {})}
        config = check(EvaluateConfig, own, where=NAME, file="arguments")
        refuse_truncation(config, reference)
    else:
        given: dict[str, Any] = {"reward": (reward, None), "samples": (samples, 8), "sampling": (sampling, None)}
        given |= {"max_tokens": (max_tokens, 64), "temperature": (temperature, 1.0), "seed": (seed, SEED)}
        check_config(config, EvaluateConfig, NAME, {**given, "max_failed": (max_failed, 0.0)})
    scored_by = scorer_folder(config, reward_model)
    with frozen(model, tokenizer, config) as policy, beside(reference, policy.runtime) as other:
        asked = prompts_given(policy.text, prompts)
        if not all(isinstance(prompt, Prompt) for prompt in prompts):
            asked = scorable_prompts(config.reward, asked, "prompts")
        return PolicyEvaluation(config, policy, asked, other, scored_by, name, where).run(sampler)


def scorer_folder(config: ScoredSampling, reward_model: str | Path | None) -> Path | None:
    """Return the folder of the reward model.

    Reject a reward model that no reward uses, and a reward `model` without one.
    """
    if reward_model is None:
        refuse_learned(config.terms, "Give reward_model: the folder of one")
        return None
    refuse_unread(config.terms)
    return model_folder(reward_model, "reward_model")


def _scored_by(reward: Any) -> dict[str, Any]:
    """Return the rewards and metrics of a call. A reward with weight 0 becomes a metric."""
    if reward is None:
        raise ParamsError(what="there is no reward", where="reward", fix="Give a function of rollouts, or a config")
    terms = terms_given(reward)
    counted = {name: term for name, term in terms.items() if term.counted or term.gate}
    return {"reward": counted, "metrics": {name: term for name, term in terms.items() if name not in counted}}


@contextmanager
def frozen(model: Any, tokenizer: Any, config: ScoredSampling) -> Iterator[SampledModel]:
    """Yield the policy from `load_frozen`, or the caller's own model, which is restored afterwards."""
    if isinstance(model, SampledModel):
        if tokenizer is not None:
            what, fix = "the policy of load_frozen has its own tokenizer", "Give None"
            raise ParamsError(what=what, where="tokenizer", fix=fix)
        yield model
        return
    if tokenizer is None:
        raise ParamsError(what="a model of transformers needs its tokenizer", where="tokenizer", fix="Give it")
    if config.engine != "builtin":
        what, fix = "it loads the model itself", "Load it with posttrain.load_frozen(folder, config), and give that"
        raise ParamsError(what=what, where="config.engine", fix=fix)
    own = own_model(model)
    runtime = Runtime(device_of(own))
    with our_attention(own), computing(own, runtime):
        yield SampledModel(own, Path(), text_of(own, tokenizer, config.date, config.template), runtime)


@contextmanager
def beside(reference: Any, runtime: Runtime) -> Iterator[Any]:
    """Yield a reference for an evaluation: a folder, or a model, which is restored afterwards."""
    if reference is None or isinstance(reference, str | Path):
        yield reference if reference is None else model_folder(reference, "reference")
        return
    other = own_model(reference)
    with our_attention(other), computing(other, runtime):
        yield other
