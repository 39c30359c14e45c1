"""Measure a model on prompts and rewards in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from posttrain.api.given import prompts_given, refuse_learned
from posttrain.api.model import check_room
from posttrain.api.own_model import Messages, device_of, our_attention, own_model, text_of
from posttrain.errors import ParamsError
from posttrain.evaluate.intervals import SEED
from posttrain.evaluate.metrics import evaluation_metrics, kl_to_reference
from posttrain.models.device import Runtime
from posttrain.models.master_weights import computing
from posttrain.rewards.failures import MAX_FAILED, FailureLimit, MaxFailed
from posttrain.rewards.given import terms_given
from posttrain.rewards.reward import Context
from posttrain.rewards.scorable import scorable_prompts
from posttrain.rewards.score import RewardSum
from posttrain.rollout import Rollout
from posttrain.sampling.builtin import LocalSampler
from posttrain.sampling.sampler import SamplingParams, generate_rollouts
from posttrain.settings.params import Params, check

NAME = "evaluate_model"


@dataclass(frozen=True)
class Evaluation:
    """What was measured of a model, and its scored samples."""

    metrics: dict[str, float]
    """The mean reward `score` with its 95 % interval over prompts, pass@k, each reward, length, and others."""
    rollouts: list[Rollout]
    """The scored samples; samples of one prompt are neighbours."""
    greedy: list[Rollout]
    """The greedy completion of each prompt."""


class Numbers(Params):
    """Numbers among the arguments."""

    samples: int = Field(8, ge=1, description="samples of each prompt")
    seed: int = Field(SEED, ge=0, description="the samples' random numbers")
    max_failed: MaxFailed = MAX_FAILED


def evaluate_model(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[str | Messages | Mapping[str, Any]],
    reward: Any,
    *,
    samples: int = 8,
    max_tokens: int = 64,
    temperature: float = 1.0,
    seed: int = SEED,
    sampling: Mapping[str, Any] | None = None,
    reference: Any | None = None,
    max_failed: float = 0.0,
) -> Evaluation:
    """Sample each prompt several times and once greedily, score the completions, and return the metrics.

    prompts and reward: as in `train_online`. seed: a seed that no training uses by default, so that two models are
    compared on the same random numbers. sampling: other keys of a run's `sampling`, as `{"top_p": 0.9}`. reference: a
    model that the KL is measured against. max_failed: the largest share of completions that a reward may fail to score.

    Example: `evaluate_model(model, tokenizer, rows, {"correct": 1.0}).metrics["score"]`
    """
    check(Numbers, {"samples": samples, "seed": seed, "max_failed": max_failed}, where=NAME, file="arguments")
    drawn = {"max_tokens": max_tokens, "temperature": temperature, **(sampling or {})}
    params = check(SamplingParams, drawn, where=f"{NAME}.sampling", file="arguments")
    terms = terms_given(reward)
    refuse_learned(terms, "Write a function of rollouts that calls posttrain.score")
    if reference is not None and params.truncates:
        what = "top_p and top_k leave out tokens, which the log-probs of the reference are over"
        raise ParamsError(what=what, where="reference", fix="Sample without them, or without a reference")
    model = own_model(model)
    text, runtime = text_of(model, tokenizer), Runtime(device_of(model))
    asked = scorable_prompts(terms, prompts_given(text, prompts), "prompts")
    check_room(text, [prompt.ids for prompt in asked], samples * len(asked), params, NAME)
    total = RewardSum(terms, Context(runtime, NAME, None, text, params.max_tokens))
    total.load(asked)
    frozen = model if reference is None else own_model(reference)
    with our_attention(model), our_attention(frozen), computing(model, runtime), computing(frozen, runtime):
        sampler = LocalSampler(model, text.stops, runtime)
        many = generate_rollouts(sampler, text, asked, params, seed, samples=samples)
        once = generate_rollouts(sampler, text, asked, params, seed, samples=1, greedy=True)
        sampled, greedy = total.score(many), total.score(once)
        FailureLimit(total, max_failed, NAME).check([*sampled, *greedy])
        metrics = evaluation_metrics(total, sampled, greedy, seed)
        if reference is not None:
            rows = [(one.row, one.row) for one in sampled]
            metrics |= kl_to_reference(model, frozen, rows, params.temperature, runtime)
    return Evaluation(metrics, list(sampled), list(greedy))
