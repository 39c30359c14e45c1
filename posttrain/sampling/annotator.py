"""A simulated annotator that compares and judges a policy's own samples.

It compares two samples of one prompt by their true reward and errs as Bradley and Terry have it:
P(a before b) = sigmoid((R_a - R_b) / noise). Held-out comparisons are labelled without noise, so that accuracy on them
is accuracy about the truth.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Annotated, Any

import polars as pl
from pydantic import AfterValidator, Field, model_validator

from posttrain.errors import DataError
from posttrain.models.device import DeviceParams
from posttrain.params import Params
from posttrain.rewards.catalog import USUAL, Rewards, need_a_weight, need_reward_model
from posttrain.rollout import Rollout
from posttrain.sampling.sampler import SamplingParams
from posttrain.slots import model_slot, table_slot
from posttrain.tables.columns import with_ids
from posttrain.text.chat import DATE, TemplateDate

SURE = 700.0
"""Log-odds at which an annotator never errs; exp of somewhat more is no number any more."""


class SamplesRun(Params):
    """One run of `data.samples`: tables of pairs and of feedback, made from samples of a policy."""

    policy: str = model_slot("the model that is sampled")
    data: str = table_slot("prompts", description="the prompts it samples for")
    reward_model: str = model_slot("the reward model behind reward `model`", optional=True)
    seed: int = Field(0, ge=0, description="decides samples, pairs and the annotator's errors")
    prompts: int = Field(500, ge=2, description="training prompts that are sampled")
    heldout_prompts: int = Field(150, ge=2, description="held-out prompts that are sampled")
    samples: int = Field(6, ge=2, description="samples of each prompt")
    per_prompt: int = Field(2, ge=1, description="most pairs of one prompt")
    noise: float = Field(0.25, ge=0, description="the annotator's temperature; 0 never errs")
    reward: Annotated[Rewards, AfterValidator(need_a_weight)] = Field(USUAL, description="what the annotator values")
    sampling: SamplingParams = Field(default_factory=SamplingParams)
    device: DeviceParams = Field(default_factory=DeviceParams)
    date: TemplateDate = Field(DATE, description="what a chat template that asks for today's date gets")

    @model_validator(mode="after")
    def _reward_model_where_it_counts(self) -> SamplesRun:
        need_reward_model(self.reward, self.reward_model)
        return self


def annotate(
    params: SamplesRun,
    where: str,
    rows: Sequence[Mapping[str, Any]],
    samples: Sequence[Rollout],
    rewards: Sequence[float],
) -> tuple[pl.DataFrame, pl.DataFrame, dict[str, float]]:
    """Let the annotator compare and judge the samples that ended by themselves."""
    if several := next((one for one in samples if len(one.turns) > 1), None):
        what = f"an episode of task '{several.prompt.task}' has {len(several.turns)} turns, and a pair has one"
        raise DataError(what=what, where=f"{where} (params.yaml)", fix="Sample prompts of a task without replies")
    rng = random.Random(params.seed)
    pairs, liked, flipped, compared = [], [], 0, 0
    for i, row in enumerate(rows):
        mine = range(i * params.samples, (i + 1) * params.samples)
        distinct = {samples[k].text: k for k in mine if not samples[k].truncated and samples[k].text.strip()}
        noise = params.noise if row["split"] == "train" else 0.0
        telling = [(a, b) for a, b in combinations(distinct.values(), 2) if rewards[a] != rewards[b]]
        for a, b in rng.sample(telling, min(params.per_prompt, len(telling))):
            right = _prefers(rewards[a] - rewards[b], noise, rng) == (rewards[a] > rewards[b])
            better, worse = (a, b) if (rewards[a] > rewards[b]) == right else (b, a)
            compared, flipped = compared + (noise > 0), flipped + (not right)
            told = abs(rewards[a] - rewards[b])  # how much better, as annotators are asked to say beside which
            sides = {"chosen": _turn(samples[better]), "rejected": _turn(samples[worse])}
            pairs.append({**_shared(row), **sides, "margin": told})
        middle = (max(rewards) + min(rewards)) / 2
        for k in distinct.values():
            label = _prefers(rewards[k] - middle, noise, rng)
            liked.append({**_shared(row), "completion": _turn(samples[k]), "label": label})
    if not pairs:
        fix = f"Train {params.policy} longer, or raise samples or prompts"
        where = f"{where} (params.yaml)"
        raise DataError(what="no prompt got two samples of different reward", where=where, fix=fix)
    summary = {"annotator_error": flipped / max(compared, 1), "mean_reward": sum(rewards) / len(rewards)}
    return with_ids(pl.DataFrame(pairs), "pairs"), with_ids(pl.DataFrame(liked), "feedback"), summary


def _prefers(gap: float, noise: float, rng: random.Random) -> bool:
    """Whether the annotator takes the first of two that differ by `gap`."""
    if noise == 0:
        return gap > 0
    odds = min(max(gap / noise, -SURE), SURE)
    return rng.random() < 1 / (1 + math.exp(-odds))


def _shared(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("split", "problem", "prompt")}


def _turn(sampled: Rollout) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": sampled.text}]
