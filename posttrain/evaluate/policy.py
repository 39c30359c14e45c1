"""The stage `evaluate`: what a policy does on problems that nothing was trained or tuned on."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from pydantic import Field

from posttrain.errors import DataError, ParamsError
from posttrain.evaluate.intervals import Floats, interval, pass_at_k
from posttrain.measure.phases import phase
from posttrain.measure.record import note
from posttrain.models.device import Device, DeviceParams
from posttrain.models.ends import load_ends
from posttrain.models.forward import score_tokens
from posttrain.models.store import load_policy, load_tokenizer
from posttrain.params import PARAMS_FILE, Params, at, did_you_mean, load, read
from posttrain.progress import Progress
from posttrain.rewards.blend import check_answers
from posttrain.rewards.verifiable import Sampled, correct, final_answer, well_formed
from posttrain.rollout.engine import Samples, SamplingParams, greedy, sample
from posttrain.rollout.room import check_room
from posttrain.slots import MODEL, NONE, PART, model_of, model_slot, needed_model, table_slot
from posttrain.tables.columns import Split
from posttrain.tables.identity import with_ids
from posttrain.tables.store import read_table, write_table
from posttrain.text.chat import DATE, ChatText, TemplateDate
from posttrain.text.layout import TokenRow, micro_batches, pack
from posttrain.workspace import rounded, table_path, write_json

NOT_MEASURED = "pass@1 is not measured, as no completion has an answer that can be read and compared"


class EvaluateParams(Params):
    """`evaluate.settings`: how policies are measured."""

    data: str = table_slot("prompts", description="the prompts that policies are measured on")
    reference: str = model_slot("the model that KL is measured against", optional=True)
    split: Split = Field("test", description="the prompts' split; test has a generator seed of its own")
    prompts: int = Field(500, ge=2, description="prompts, from the top of the split")
    samples: int = Field(8, ge=1, description="samples of each prompt")
    seed: int = Field(20_261_121, ge=0, description="the samples' random numbers; a seed that no training uses")
    sampling: SamplingParams = Field(default_factory=SamplingParams)
    device: DeviceParams = Field(default_factory=DeviceParams)
    date: TemplateDate = Field(DATE, description="what a chat template that asks for today's date gets")


@dataclass(frozen=True)
class Judged:
    """The completions of some prompts, with what the rules say of each."""

    drawn: Samples
    texts: list[str]
    right: list[float]
    formed: list[float]
    parsed: list[bool]
    """Whether there is a final answer, and one to compare it with."""


def load_policies() -> dict[str, str]:
    """Label -> model of the policies that params.yaml evaluates."""
    policies = at(read(), "evaluate.policies")
    odd = [f"{label!r}: {name!r}" for label, name in policies.items() if not _right_policy(label, name)]
    if odd:
        what = f"evaluate.policies has {', '.join(odd)[:300]}"
        fix = "Write LABEL: MODEL, a short name and a folder under models/, e.g. grpo: online/grpo"
        raise ParamsError(what=what, where=PARAMS_FILE, fix=fix)
    return dict(policies)


def _right_policy(label: object, name: object) -> bool:
    texts = isinstance(label, str) and isinstance(name, str)
    return texts and bool(re.fullmatch(PART, str(label)) and re.fullmatch(MODEL, str(name))) and name != NONE


def evaluate(name: str) -> dict[str, float]:
    """Sample from a policy, judge, measure; writes results/NAME/rollouts.parquet and metrics.json."""
    policies, params = load_policies(), load(EvaluateParams, "evaluate.settings")
    if name not in policies:
        fix = did_you_mean(name, list(policies))
        raise ParamsError(what=f"evaluate.policies has no '{name}'", where=PARAMS_FILE, fix=fix)
    device = Device(params.device)
    note(seed=params.seed)
    folder = needed_model(policies[name], f"evaluate.policies.{name}")
    reference = model_of(params.reference, "evaluate.settings.reference")
    text = ChatText(load_tokenizer(folder), str(folder), load_ends(folder), params.date)
    model = load_policy(folder).to(device.torch)
    rows = _rows(params)
    encoded = text.prompts([row["prompt"] for row in rows])
    names = [row["id"] for row in rows]
    check_room(model, encoded, len(rows) * params.samples, params.sampling, "evaluate")
    progress = Progress(f"evaluate {name}", len(rows) * (params.samples + 1), "completion")
    shared = {"params": params.sampling, "stop": text.stops, "device": device}
    with phase("generate"):
        drawn = sample(
            model, encoded, names, n=params.samples, seed=params.seed,
            advance=lambda prompts: progress.advance(prompts * params.samples), **shared,  # type: ignore[arg-type]
        )  # fmt: skip
        likeliest = greedy(model, encoded, advance=progress.advance, **shared)  # type: ignore[arg-type]
    progress.close()
    sampled, best = _judged(text, rows, encoded, drawn), _judged(text, rows, encoded, likeliest)
    metrics = _measured(params, sampled, best)
    if not metrics["parsed"]:
        print(
            f"evaluate {name}: {NOT_MEASURED}; the first is {sampled.texts[0]!r:.100} (docs/rewards.md)",
            file=sys.stderr,
        )
    if reference == folder:
        metrics |= {"kl_k1": 0.0, "kl_k3": 0.0}
    elif reference is not None:
        metrics |= _divergence(model, reference, encoded, drawn, params, device)
    folder = Path("results") / name
    frame = pl.concat([_table(name, rows, sampled, params.samples), _table(name, rows, best, 0)])
    write_table(with_ids(frame, "rollouts"), folder / "rollouts.parquet", "rollouts")
    write_json(folder / "metrics.json", rounded(metrics, 5))
    return metrics


def summary(name: str, metrics: dict[str, float]) -> str:
    """The line that a person wants to see first."""
    low, high = metrics["pass_at_1_low"], metrics["pass_at_1_high"]
    if not metrics["parsed"]:
        return f"{name}: {NOT_MEASURED}, length {metrics['length']:.1f}"
    return (
        f"{name}: pass@1 {metrics['pass_at_1']:.3f} [{low:.3f}, {high:.3f}], greedy {metrics['greedy']:.3f}, "
        f"format {metrics['format']:.3f}, length {metrics['length']:.1f}"
    )


def _rows(params: EvaluateParams) -> list[dict[str, Any]]:
    """The first prompts of the split; where some have an answer that can be read, only those that have."""
    file = table_path(params.data)
    frame = read_table(file, "prompts").filter(split=params.split)
    if any(answer.strip() for answer in frame["answer"]):
        usable = check_answers({"correct": 1.0}, dict(frame.select("id", "answer").iter_rows()), str(file))
        frame = frame.filter(pl.col("id").is_in(list(usable)))
    else:
        print("evaluate: no prompt has an answer, so pass@1 and greedy are not measured", file=sys.stderr)
    if frame.height < 2:
        what, fix = f"{frame.height} prompts are in the split {params.split}", "At least two are needed"
        raise DataError(what=what, where=str(file), fix=fix)
    if frame.height < params.prompts and "prompts" in params.model_fields_set:
        known = f"{frame.height} prompts are all there are in split '{params.split}'"
        print(f"evaluate: {known} (evaluate.settings.prompts: {params.prompts})", file=sys.stderr)
    return frame.head(params.prompts).rows(named=True)


@phase("score")
def _judged(text: ChatText, rows: Sequence[dict[str, Any]], encoded: Sequence[Sequence[int]], drawn: Samples) -> Judged:
    each = len(drawn.ids) // len(rows)
    texts = [text.decode(ids) for ids in drawn.ids]
    samples = [
        Sampled(encoded[k // each], ids, texts[k], rows[k // each]["answer"], drawn.truncated[k])
        for k, ids in enumerate(drawn.ids)
    ]
    parsed = [bool(one.answer) and final_answer(one.text) is not None for one in samples]
    return Judged(drawn, texts, correct(samples), well_formed(samples), parsed)


def _measured(params: EvaluateParams, sampled: Judged, best: Judged) -> dict[str, float]:
    right = np.array(sampled.right).reshape(-1, params.samples)
    per_prompt: Floats = right.mean(axis=1)
    low, high = interval(per_prompt, seed=params.seed)
    metrics = {"pass_at_1": float(per_prompt.mean()), "pass_at_1_low": low, "pass_at_1_high": high}
    if params.samples > 1:
        metrics[f"pass_at_{params.samples}"] = float(
            pass_at_k(params.samples, right.sum(axis=1), params.samples).mean()
        )
    working = np.array(["=" in text for text in sampled.texts])
    return metrics | {
        "greedy": float(np.mean(best.right)),
        "format": float(np.mean(sampled.formed)),
        "parsed": float(np.mean(sampled.parsed)),
        "truncated": float(np.mean(sampled.drawn.truncated)),
        "length": float(np.mean([len(ids) for ids in sampled.drawn.ids])),
        "working": float(working.mean()),
        "right_given_working": float(right.flatten()[working].mean()) if working.any() else 0.0,
    }


@phase("score")
@torch.no_grad()
def _divergence(
    model: Any,
    reference: Path,
    encoded: Sequence[Sequence[int]],
    drawn: Samples,
    params: EvaluateParams,
    device: Device,
) -> dict[str, float]:
    """KL(policy || reference) per completion from the policy's own samples: mean over rows of summed k1 and k3."""
    other = load_policy(reference).to(device.torch)
    each = len(drawn.ids) // len(encoded)
    prompts = [encoded[k // each] for k in range(len(drawn.ids))]
    sizes = [len(p) + len(c) for p, c in zip(prompts, drawn.ids, strict=True)]
    k1, k3 = torch.zeros(2, dtype=torch.float64, device=device.torch)
    for part in micro_batches(sizes, list(range(len(sizes))), 16_384):
        layout = pack([TokenRow(prompts[i], drawn.ids[i]) for i in part]).to(device.torch)
        with device.autocast():
            ours, _ = score_tokens(model, layout, params.sampling.temperature)
            theirs, _ = score_tokens(other, layout, params.sampling.temperature)
        gap = (theirs - ours).double()
        k1, k3 = k1 - gap.sum(), k3 + (gap.expm1() - gap).sum()
    return {"kl_k1": float(k1) / len(drawn.ids), "kl_k3": float(k3) / len(drawn.ids)}


def _table(name: str, rows: Sequence[dict[str, Any]], judged: Judged, samples: int) -> pl.DataFrame:
    """The completions as a `rollouts` table; samples = 0 for the greedy ones."""
    each = max(samples, 1)
    owners = [rows[k // each] for k in range(len(judged.texts))]
    return pl.DataFrame(
        {
            "prompt_id": [owner["id"] for owner in owners],
            "problem": [owner["problem"] for owner in owners],
            "policy": [name] * len(owners),
            "sample": [k % each for k in range(len(owners))],
            "greedy": [samples == 0] * len(owners),
            "prompt": [owner["prompt"] for owner in owners],
            "answer": [owner["answer"] for owner in owners],
            "completion": judged.texts,
            "completion_ids": judged.drawn.ids,
            "logps": pl.Series(judged.drawn.logps, dtype=pl.List(pl.Float32)),
            "truncated": judged.drawn.truncated,
            "reward": judged.right,
        }
    )
