"""Tables from a policy's samples: demonstrations, prompts by pass rate, and a simulated annotator's pairs and labels.

The annotator compares two samples of one prompt by their reward, with Bradley-Terry noise: P(a preferred to b) =
sigmoid((R_a - R_b) / noise). Held-out comparisons are labelled without noise, so that accuracy on them measures
agreement with the reward.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Annotated, Any, Final, Literal

import polars as pl
from pydantic import AfterValidator, Field, field_validator, model_validator

from posttrain.data.columns import CONTROL, VARIABLES, Kind, with_ids
from posttrain.errors import DataError
from posttrain.pipeline.params.slots import model_slot, table_slot
from posttrain.rewards.catalog import USUAL, Rewards, need_a_weight, need_reward_model
from posttrain.rollout import Rollout
from posttrain.sampling.scored import SampleConfig
from posttrain.sampling.step_labels import LabelledStep

MAX_LOG_ODDS = 700.0
"""exp of a larger number overflows."""
SampledKind = Literal["pairs", "feedback", "chat", "prompts"]
SAMPLED: Final[tuple[SampledKind, ...]] = ("pairs", "feedback", "chat", "prompts")
"""The tables that samples can be turned into."""
DEFAULT_TABLES: Final = SAMPLED[:3]


class SamplesRun(SampleConfig):
    """One run of `data.samples`: tables made from samples of a policy."""

    policy: str = model_slot("the model to sample")
    data: str = table_slot("prompts", description="the prompts to sample for")
    reward_model: str = model_slot("the reward model behind reward `model`", optional=True, scores=True)
    tables: list[SampledKind] = Field(
        list(DEFAULT_TABLES), min_length=1, description="the tables to make: pairs, feedback, chat, prompts"
    )
    seed: int = Field(0, ge=0, description="seed of the samples, the pairs and the annotator's errors")
    prompts: int = Field(500, ge=2, description="number of training prompts to sample")
    heldout_prompts: int = Field(150, ge=2, description="number of held-out prompts to sample")
    per_prompt: int = Field(2, ge=1, description="maximum number of pairs per prompt")
    noise: float = Field(0.25, ge=0, description="the annotator's temperature; 0: never wrong")
    min_score: float | None = Field(
        None, description="minimum reward of a prompt's best sample for a row in chat; null: no minimum"
    )
    pass_rate: list[float] = Field(
        [0.0, 1.0],
        min_length=2,
        max_length=2,
        description="[low, high]: the table prompts contains the sampled training prompts whose pass rate is in "
        "this range, and all sampled held-out prompts",
    )
    reward: Annotated[Rewards, AfterValidator(need_a_weight)] = Field(
        USUAL, description="weights of the rewards that the annotator values"
    )

    @model_validator(mode="after")
    def _reward_model_where_it_counts(self) -> SamplesRun:
        need_reward_model(self.reward, self.reward_model)
        return self

    @model_validator(mode="after")
    def _labels_steps_of_feedback(self) -> SamplesRun:
        if self.steps is not None and "feedback" not in self.tables:
            raise ValueError(
                f"steps become rows of feedback, but tables = {self.tables}. Add feedback to tables, or remove steps"
            )
        return self

    @field_validator("pass_rate", mode="after")
    @classmethod
    def _shares(cls, rates: list[float]) -> list[float]:
        if not 0 <= rates[0] <= rates[1] <= 1:
            raise ValueError(f"{rates} are not shares in order. Use two numbers from 0 to 1, e.g. [0.1, 0.9]")
        return rates


def sampled_tables(
    params: SamplesRun,
    where: str,
    rows: Sequence[Mapping[str, Any]],
    samples: Sequence[Rollout],
    rewards: Sequence[float],
    steps: Sequence[LabelledStep] = (),
) -> tuple[dict[Kind, pl.DataFrame], dict[str, float]]:
    """Return the run's tables, and its metrics without the sizes of the tables."""
    tables: dict[Kind, pl.DataFrame] = {}
    summary: dict[str, float] = {}
    if "pairs" in params.tables or ("feedback" in params.tables and params.steps is None):
        tables, summary = _annotated(params, where, rows, samples, rewards)
    if params.steps is not None:
        tables["feedback"] = _of_steps(params, where, rows, steps)
        summary["right_steps"] = sum(step.right for step in steps) / max(len(steps), 1)
    if "chat" in params.tables:
        tables["chat"] = _best(params, where, rows, samples, rewards)
    if "prompts" in params.tables:
        tables["prompts"] = _of_difficulty(params, where, rows, rewards)
    return {kind: tables[kind] for kind in params.tables}, summary | {"mean_reward": sum(rewards) / len(rewards)}


def _of_steps(
    params: SamplesRun, where: str, rows: Sequence[Mapping[str, Any]], steps: Sequence[LabelledStep]
) -> pl.DataFrame:
    """Return labelled steps as a feedback table. Each row is the answer up to the end of a step."""
    if not steps:
        raise _nothing(params, where, "no sample is complete and of one turn, so no step has a label")
    judged = [
        {
            **_shared(rows[step.place // params.samples]),
            "completion": [{"role": "assistant", "content": step.text}],
            "label": step.right,
        }
        for step in steps
    ]
    return with_ids(pl.DataFrame(judged), "feedback").unique("id", keep="first", maintain_order=True)


def _best(
    params: SamplesRun,
    where: str,
    rows: Sequence[Mapping[str, Any]],
    samples: Sequence[Rollout],
    rewards: Sequence[float],
) -> pl.DataFrame:
    """Return the best sample of each prompt (the first if several are equal) as a demonstration with `score`."""
    least = -math.inf if params.min_score is None else params.min_score
    demonstrations = []
    for i, row in enumerate(rows):
        complete = [k for k in range(i * params.samples, (i + 1) * params.samples) if _learnable(samples[k])]
        best = max(complete, key=rewards.__getitem__, default=None)
        if best is not None and rewards[best] >= least:
            messages = [*row["prompt"], *map(dict, samples[best].turns)]
            shared = {name: row[name] for name in ("split", "problem", VARIABLES) if name in row}
            demonstrations.append({**shared, "messages": messages, "score": rewards[best]})
    for split in ("train", "heldout"):
        if not any(row["split"] == split for row in demonstrations):
            reached = "" if params.min_score is None else f" of reward >= min_score = {params.min_score:g}"
            what = f"no {split} prompt got a complete sample{reached} (the best reward is {max(rewards):g})"
            fix = "Raise samples or prompts, lower min_score, or leave chat out of tables"
            raise DataError(what=what, where=f"{where} (params.yaml)", fix=fix)
    return with_ids(pl.DataFrame(demonstrations), "chat").unique("id", keep="first", maintain_order=True)


def _of_difficulty(
    params: SamplesRun, where: str, rows: Sequence[Mapping[str, Any]], rewards: Sequence[float]
) -> pl.DataFrame:
    """Return the training prompts whose pass rate lies within `pass_rate`, and all held-out prompts."""
    low, high = params.pass_rate
    scores = (rewards[i : i + params.samples] for i in range(0, len(rewards), params.samples))
    rates = [
        sum(score >= params.pass_score for score in prompt_scores) / len(prompt_scores) for prompt_scores in scores
    ]
    train = sum(row["split"] == "train" for row in rows)
    selected = [row for row, rate in zip(rows, rates, strict=True) if row["split"] != "train" or low <= rate <= high]
    left = sum(row["split"] == "train" for row in selected)
    counts = f"{sum(rate == 0 for rate in rates):,} never pass, {sum(rate == 1 for rate in rates):,} always"
    print(f"{where}: {left:,} of {train:,} training prompts have a pass rate in [{low:g}, {high:g}]; of all, {counts}")
    if not left:
        what = f"no training prompt has a pass rate in [{low:g}, {high:g}]; of {len(rates):,} prompts {counts}"
        raise DataError(what=what, where=f"{where} (params.yaml)", fix="Widen pass_rate, or lower pass_score")
    return with_ids(pl.DataFrame(selected), "prompts")


def _learnable(sampled: Rollout) -> bool:
    """Tell whether a sample ended with a stop token and has text that a table of demonstrations accepts."""
    contents = [turn["content"] for turn in sampled.turns]
    return not sampled.truncated and all(text.strip() and not re.search(CONTROL, text) for text in contents)


def _annotated(
    params: SamplesRun,
    where: str,
    rows: Sequence[Mapping[str, Any]],
    samples: Sequence[Rollout],
    rewards: Sequence[float],
) -> tuple[dict[Kind, pl.DataFrame], dict[str, float]]:
    """Return the annotator's pairs and labels that the run needs, over samples that ended with a stop token.

    Both are always drawn, so that the labels of a seed do not depend on `tables`.
    """
    if several := next((sample for sample in samples if len(sample.turns) > 1), None):
        what = (
            f"an episode of task '{several.prompt.task}' has {len(several.turns)} turns, but pairs and feedback need "
            "one turn"
        )
        raise DataError(what=what, where=f"{where} (params.yaml)", fix="Write tables: [chat]")
    rng = random.Random(params.seed)
    pairs, liked, flipped, compared = [], [], 0, 0
    for i, row in enumerate(rows):
        places = range(i * params.samples, (i + 1) * params.samples)
        distinct = {samples[k].text: k for k in places if not samples[k].truncated and samples[k].text.strip()}
        noise = params.noise if row["split"] == "train" else 0.0
        differing = [(a, b) for a, b in combinations(distinct.values(), 2) if rewards[a] != rewards[b]]
        for a, b in rng.sample(differing, min(params.per_prompt, len(differing))):
            correct = _prefers(rewards[a] - rewards[b], noise, rng) == (rewards[a] > rewards[b])
            better, worse = (a, b) if (rewards[a] > rewards[b]) == correct else (b, a)
            compared, flipped = compared + (noise > 0), flipped + (not correct)
            margin = abs(rewards[a] - rewards[b])
            sides = {"chosen": _turn(samples[better]), "rejected": _turn(samples[worse])}
            pairs.append({**_shared(row), **sides, "margin": margin})
        middle = (max(rewards) + min(rewards)) / 2
        for k in distinct.values():
            label = _prefers(rewards[k] - middle, noise, rng)
            liked.append({**_shared(row), "completion": _turn(samples[k]), "label": label})
    if "pairs" in params.tables and not pairs:
        raise _nothing(params, where, "no prompt got two samples of different reward")
    if not liked or min(rewards) == max(rewards):
        raise _nothing(params, where, "no complete samples differ in their reward")
    made: dict[Kind, list[dict[str, Any]]] = {"pairs": pairs, "feedback": liked}
    wanted = [kind for kind in made if kind in params.tables and (kind == "pairs" or params.steps is None)]
    summary = {"annotator_error": flipped / max(compared, 1)}
    tables = {kind: with_ids(pl.DataFrame(made[kind]), kind) for kind in wanted}
    # prompts of one text and other answers may get the same sample
    return {kind: table.unique("id", keep="first", maintain_order=True) for kind, table in tables.items()}, summary


def _nothing(params: SamplesRun, where: str, what: str) -> DataError:
    """Return the error for a table without rows."""
    fix = f"Train {params.policy} longer, raise samples or prompts, or write tables: [chat]"
    return DataError(what=what, where=f"{where} (params.yaml)", fix=fix)


def _prefers(gap: float, noise: float, rng: random.Random) -> bool:
    """Tell whether the annotator prefers the first of two samples whose rewards differ by `gap`."""
    if noise == 0:
        return gap > 0
    odds = min(max(gap / noise, -MAX_LOG_ODDS), MAX_LOG_ODDS)
    return rng.random() < 1 / (1 + math.exp(-odds))


def _shared(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("split", "problem", "prompt", VARIABLES) if name in row}


def _turn(sampled: Rollout) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": sampled.text}]
