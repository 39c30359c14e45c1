"""The stage `data_samples`: comparisons and feedback from a policy's own samples.

In the miniature a simulated annotator compares two samples of one prompt by their true reward and errs as
Bradley and Terry have it: P(a before b) = sigmoid((R_a - R_b) / noise). Held-out comparisons are labelled without
noise, so that accuracy on them is accuracy about the truth.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import polars as pl
from pydantic import Field

from posttrain.errors import DataError
from posttrain.measure.phases import phase
from posttrain.measure.record import note
from posttrain.models.device import Device, DeviceParams
from posttrain.models.ends import load_ends
from posttrain.models.store import load_policy, load_tokenizer
from posttrain.params import Params, load
from posttrain.progress import Progress
from posttrain.rewards.blend import check_answers, check_completions, make_blend
from posttrain.rewards.verifiable import Sampled
from posttrain.rollout.engine import SamplingParams, sample
from posttrain.rollout.room import check_room
from posttrain.slots import model_of, model_slot, needed_model, table_slot
from posttrain.tables.columns import Kind
from posttrain.tables.identity import with_ids
from posttrain.tables.store import check_disjoint, check_table, read_table, write_tables
from posttrain.text.chat import DATE, ChatText, TemplateDate
from posttrain.workspace import metrics_path, rounded, table_path, write_json

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
    reward: dict[str, float] = Field({"correct": 1.0, "format": 0.2}, description="what the annotator values")
    sampling: SamplingParams = Field(default_factory=SamplingParams)
    device: DeviceParams = Field(default_factory=DeviceParams)
    date: TemplateDate = Field(DATE, description="what a chat template that asks for today's date gets")


def make_pairs(run: str) -> None:
    """Write the tables `pairs` and `feedback`."""
    params, folder = load(SamplesRun, f"data.samples.{run}"), Path("data") / run
    pairs, unpaired, summary = _sampled(params, f"data.samples.{run}")
    tables: dict[Kind, pl.DataFrame] = {"pairs": pairs, "feedback": unpaired}
    for kind, frame in tables.items():
        check_table(frame, kind, folder / f"{kind}.parquet")
        check_disjoint({kind: frame})
    write_tables(tables, folder)
    counts = {f"pairs_{split}": pairs.filter(split=split).height for split in ("train", "heldout")}
    write_json(metrics_path(f"data/{run}"), {**counts, "feedback": unpaired.height, **rounded(summary)})
    print(
        f"{run}: {counts['pairs_train']} pairs for training, {counts['pairs_heldout']} held out, "
        f"{unpaired.height} unpaired"
    )


def _sampled(params: SamplesRun, where: str) -> tuple[pl.DataFrame, pl.DataFrame, dict[str, float]]:
    device = Device(params.device)
    note(seed=params.seed)
    folder, table = needed_model(params.policy, f"{where}.policy"), table_path(params.data)
    text = ChatText(load_tokenizer(folder), str(folder), load_ends(folder), params.date)
    model = load_policy(folder).to(device.torch)
    frame = read_table(table, "prompts")
    wanted = {"train": params.prompts, "heldout": params.heldout_prompts}
    asked = frame.filter(pl.col("split").is_in(list(wanted)))
    usable = check_answers(params.reward, dict(asked.select("id", "answer").iter_rows()), str(table))
    frame = frame.filter(pl.col("id").is_in(list(usable)))
    rows = [row for split, n in wanted.items() for row in frame.filter(split=split).head(n).iter_rows(named=True)]
    reward = make_blend(params.reward, where, model_of(params.reward_model, f"{where}.reward_model"), device)
    progress = Progress(f"{where}: sampling", len(rows), "prompt")
    encoded = text.prompts([row["prompt"] for row in rows])
    check_room(model, encoded, len(rows) * params.samples, params.sampling, where)
    with phase("generate"):
        drawn = sample(
            model, encoded, [row["id"] for row in rows], n=params.samples, params=params.sampling, seed=params.seed,
            stop=text.stops, device=device, advance=progress.advance,
        )  # fmt: skip
    progress.close()
    texts = [text.decode(ids) for ids in drawn.ids]
    owners = [i for i in range(len(rows)) for _ in range(params.samples)]
    samples = [
        Sampled(encoded[i], drawn.ids[k], texts[k], rows[i]["answer"], drawn.truncated[k]) for k, i in enumerate(owners)
    ]
    check_completions(params.reward, samples, where)
    return _labelled(params, where, rows, samples, reward(samples)[0])


def _labelled(
    params: SamplesRun,
    where: str,
    rows: Sequence[Mapping[str, Any]],
    samples: Sequence[Sampled],
    rewards: Sequence[float],
) -> tuple[pl.DataFrame, pl.DataFrame, dict[str, float]]:
    """Let the annotator compare and judge the samples that ended by themselves."""
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


def _turn(sampled: Sampled) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": sampled.text}]
