"""The stage `pairs`: comparisons and feedback, from the policy's own samples or from given data.

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
from typing import Any, Literal

import polars as pl
from pydantic import Field

from posttrain.errors import DataError
from posttrain.measure.phases import phase
from posttrain.measure.record import note
from posttrain.models.device import Device, DeviceParams
from posttrain.models.ends import load_ends
from posttrain.models.store import load_policy, load_tokenizer
from posttrain.params import Params
from posttrain.progress import Progress
from posttrain.rewards.blend import check_answers, check_completions, make_blend
from posttrain.rewards.verifiable import Sampled
from posttrain.rollout.engine import SamplingParams, sample
from posttrain.rollout.room import check_room
from posttrain.tables.columns import Kind
from posttrain.tables.given import GivenParams, load_feedback, load_pairs
from posttrain.tables.identity import with_ids
from posttrain.tables.store import check_disjoint, check_table, read_table, write_table
from posttrain.text.chat import DATE, ChatText, TemplateDate
from posttrain.workspace import metrics_path, model_path, rounded, write_json

PROMPTS, PAIRS, FEEDBACK = Path("data/prompts.parquet"), Path("data/pairs.parquet"), Path("data/feedback.parquet")

SURE = 700.0
"""Log-odds at which an annotator never errs; exp of somewhat more is no number any more."""


class GivenPairs(Params):
    """The user's own comparisons and feedback."""

    pairs: GivenParams = Field(description="prompt + chosen + rejected")
    feedback: GivenParams | None = Field(None, description="prompt + completion + label; made from the pairs if absent")


class PairsParams(Params):
    """Section `pairs`: where preferences come from."""

    source: Literal["sampled", "given"] = Field("sampled", description="the policy's samples, or your own data")
    given: GivenPairs | None = Field(None, description="read when source is given")
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


def make_pairs(params: PairsParams) -> None:
    """Write the tables `pairs` and `feedback`."""
    if params.source == "given" and params.given is not None:
        pairs = load_pairs(params.given.pairs, "pairs.given.pairs")
        liked = params.given.feedback
        unpaired = _unpaired(pairs) if liked is None else load_feedback(liked, "pairs.given.feedback")
        summary: dict[str, float] = {}
    else:
        pairs, unpaired, summary = _sampled(params)
    tables: dict[Path, tuple[pl.DataFrame, Kind]] = {PAIRS: (pairs, "pairs"), FEEDBACK: (unpaired, "feedback")}
    for path, (frame, kind) in tables.items():
        check_table(frame, kind, path)
        check_disjoint({kind: frame})
    for path, (frame, kind) in tables.items():  # none is replaced where the other is refused
        write_table(frame, path, kind)
    counts = {f"pairs_{split}": pairs.filter(split=split).height for split in ("train", "heldout")}
    write_json(metrics_path("pairs"), {**counts, "feedback": unpaired.height, **rounded(summary)})
    print(
        f"pairs: {counts['pairs_train']} for training, {counts['pairs_heldout']} held out, {unpaired.height} unpaired"
    )


def _sampled(params: PairsParams) -> tuple[pl.DataFrame, pl.DataFrame, dict[str, float]]:
    device = Device(params.device)
    note(seed=params.seed)
    folder = model_path("sft")
    text = ChatText(load_tokenizer(folder), str(folder), load_ends(folder), params.date)
    model = load_policy(folder).to(device.torch)
    frame = read_table(PROMPTS, "prompts")
    wanted = {"train": params.prompts, "heldout": params.heldout_prompts}
    asked = frame.filter(pl.col("split").is_in(list(wanted)))
    usable = check_answers(params.reward, dict(asked.select("id", "answer").iter_rows()), str(PROMPTS))
    frame = frame.filter(pl.col("id").is_in(list(usable)))
    rows = [row for split, n in wanted.items() for row in frame.filter(split=split).head(n).iter_rows(named=True)]
    reward = make_blend(params.reward, "pairs", model_path("reward"), device)
    progress = Progress("pairs: sampling", len(rows), "prompt")
    encoded = text.prompts([row["prompt"] for row in rows])
    check_room(model, encoded, len(rows) * params.samples, params.sampling, "pairs")
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
    check_completions(params.reward, samples, "pairs")
    return _labelled(params, rows, samples, reward(samples)[0])


def _labelled(
    params: PairsParams, rows: Sequence[Mapping[str, Any]], samples: Sequence[Sampled], rewards: Sequence[float]
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
        mend = "Train sft longer, or raise pairs.samples or pairs.prompts"
        raise DataError(what="no prompt got two samples of different reward", where="pairs (params.yaml)", mend=mend)
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


def _unpaired(pairs: pl.DataFrame) -> pl.DataFrame:
    """Chosen answers as liked and rejected ones as not."""
    sides = [
        pairs.select("split", "problem", "prompt", completion=side, label=pl.lit(value))
        for side, value in (("chosen", True), ("rejected", False))
    ]
    return with_ids(pl.concat(sides), "feedback").unique("id", maintain_order=True)
