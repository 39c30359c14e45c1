"""Evaluate a model on prompts with rewards, in memory, or score its completions again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from posttrain.api.argument_checks import check_config
from posttrain.api.frozen_models import beside, frozen
from posttrain.api.given import prompts_given
from posttrain.api.own_model import Messages
from posttrain.api.scorer_folder import scorer_folder
from posttrain.errors import DataError, ParamsError
from posttrain.evaluate.config import EvaluateConfig
from posttrain.evaluate.intervals import SEED
from posttrain.evaluate.policy import Evaluation, scored_completions
from posttrain.evaluate.sampled import PolicySampling, SampledCompletions, refuse_truncation
from posttrain.models.device import Runtime
from posttrain.rewards.given import terms_given
from posttrain.rewards.scorable import judged_prompts, scorable_prompts
from posttrain.rollout import Prompt
from posttrain.sampling.frozen import OpenSampler
from posttrain.settings.params import check
from posttrain.text.chat import ChatText

NAME = "evaluate_model"
SCORE = "score_completions"


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
        values = {"samples": samples, "seed": seed, "max_failed": max_failed, **_scored_by(reward)}
        values["sampling"] = {"max_tokens": max_tokens, "temperature": temperature, **(sampling or {})}
        config = check(EvaluateConfig, values, where=NAME, file="arguments")
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
        scorer = config.scorer(policy.runtime, policy.text, scored_by, where)
        if scored_by is None:  # a reward model takes memory, which the sampler needs first
            scorer.load(asked)
        sampled = PolicySampling(config, policy, asked, other, name, where).run(sampler)
        return scored_completions(config, sampled, scorer, where)


def score_completions(
    completions: SampledCompletions,
    reward: Any = None,
    *,
    max_failed: float = 0.0,
    config: EvaluateConfig | None = None,
    text: ChatText | None = None,
    reward_model: str | Path | None = None,
    name: str = SCORE,
    where: str = SCORE,
) -> Evaluation:
    """Score the result of `sample_completions`, or the `completions` of an `Evaluation`. Nothing is sampled.

    reward: as in `train_online`. max_failed: the largest share of completions that a reward may fail to score. config:
    all settings as one typed object, instead of these arguments. text: the policy's tokenizer and template, for rewards
    that read them. reward_model: the folder of the model behind the reward `model`. Prompts that no reward can judge
    are left out. name, where: names of this task and of its settings in messages.

    Example: `score_completions(found, {"correct": {"answer": "math"}}).metrics["score"]`
    """
    given: object = completions
    if not isinstance(given, SampledCompletions):
        what = f"this is {type(given).__name__}, not the completions of a model"
        fix = "Give the result of sample_completions, or evaluation.completions"
        raise DataError(what=what, where="completions", fix=fix)
    if config is None:
        values = {"max_failed": max_failed, **_scored_by(reward)}
        config = check(EvaluateConfig, values, where=SCORE, file="arguments")
    else:
        check_config(config, EvaluateConfig, SCORE, {"reward": (reward, None), "max_failed": (max_failed, 0.0)})
    alone = all(term.reward.each for term in config.terms.values())  # functions of a rollout, which use no device
    scorer = config.scorer(None if alone else Runtime(config.device), text, scorer_folder(config, reward_model), where)
    known = completions.of(judged_prompts(config.reward, completions.prompts, name))
    scorer.load(known.prompts)
    return scored_completions(config, known, scorer, where)


def _scored_by(reward: Any) -> dict[str, Any]:
    """Return the rewards and metrics of a call. A reward with weight 0 becomes a metric."""
    if reward is None:
        raise ParamsError(what="there is no reward", where="reward", fix="Give a function of rollouts, or a config")
    terms = terms_given(reward)
    counted = {name: term for name, term in terms.items() if term.counted or term.gate}
    return {"reward": counted, "metrics": {name: term for name, term in terms.items() if name not in counted}}
