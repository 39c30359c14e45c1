"""A small finished workspace: real tables and files as the stages before `report` leave them, with known figures."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from posttrain.data.columns import from_rows, with_ids
from posttrain.evaluate.completions import select_text
from posttrain.evaluate.context import Completions
from posttrain.pipeline.runs.ratings import RatingRun, figures, pairs_of, played
from posttrain.pipeline.tables.store import read_table, write_table

POLICIES = ("base", "sft", "dpo", "grpo")
PROMPTS, SAMPLES = 30, 2

PARAMS = """
data: {tasks: {two_step: {task: two_step}}}
base: {scratch: {tiny: {data: two_step/corpus, steps: 40}}}
sft: {runs: {main: {start: base/tiny, data: two_step/chat, epochs: 3.0}}}
reward: {runs: {main: {start: sft/main, data: compared/pairs, feedback: none, demonstrations: none}}}
preference:
  runs:
    dpo: {algorithm: dpo, start: sft/main, data: compared/pairs, beta: 0.1}
online:
  runs:
    grpo: {algorithm: grpo, start: sft/main, data: two_step/prompts, kl: {beta: 0.02}}
evaluate:
  settings: {data: two_step/prompts, reference: sft/main, reward_model: none, prompts: 30, samples: 2}
  policies: {base: base/tiny, sft: sft/main, dpo: preference/dpo, grpo: online/grpo}
"""

HOSTILE = (
    "<script>window.hacked=1</script>",
    "</script><script>window.hacked=2</script>",
    "<img src=x onerror=window.hacked=3>",
    "<!-- <script> {{script}} \u2028 \u202e\u2066 & &amp; </style><svg onload=window.hacked=4>",
)
"""What a policy may write, and what must come to nothing."""

FIGURES = {
    "base": {"score": 0.0, "low": 0.0, "high": 0.0, "working": 0.9, "right_given_working": 0.0, "kl_k1": 40.0},
    "sft": {"score": 0.3, "low": 0.25, "high": 0.35, "working": 0.5, "right_given_working": 0.6, "kl_k1": 0.0},
    "dpo": {
        "score": 0.64,
        "low": 0.6,
        "high": 0.7,
        "working": 0.8,
        "right_given_working": 0.8,
        "kl_k1": 0.5,
    },
    "grpo": {
        "score": 0.9,
        "low": 0.85,
        "high": 0.95,
        "working": 1.0,
        "right_given_working": 0.9,
        "kl_k1": 0.9,
    },
}


def right(policy: str, prompt: int, sample: int) -> bool:
    """Base never, SFT every third prompt, DPO every second, GRPO all but the first; a later sample is always wrong."""
    return sample == 0 and {"base": False, "sft": prompt % 3 == 0, "dpo": prompt % 2 == 0}.get(policy, prompt > 0)


def completion(policy: str, prompt: int, sample: int, *, greedy: bool) -> str:
    if policy == "grpo" and prompt < len(HOSTILE):
        return HOSTILE[prompt]
    return f"{'likeliest' if greedy else 'sample'} {sample} of {policy} to {prompt}\n#### {prompt + 1}"


def rollouts(policy: str, *, first_prompt: int = 0, prompts: int = PROMPTS) -> list[dict[str, Any]]:
    kinds = [(sample, False) for sample in range(SAMPLES)] + [(0, True)]
    return [
        {
            "prompt_id": f"{prompt:016x}",
            "problem": f"p{prompt}",
            "policy": policy,
            "sample": sample,
            "greedy": greedy,
            "prompt": [{"role": "user", "content": f"What is {prompt}+1? {HOSTILE[prompt] if prompt < 2 else ''}"}],
            "answer": str(prompt + 1),
            "task": "two_step",
            "completion": completion(policy, prompt, sample, greedy=greedy),
            "completion_ids": list(range(prompt % 5 + sample + 1)),
            "mask": [True] * (prompt % 5 + sample + 1),
            "logps": [-0.5] * (prompt % 5 + sample + 1),
            "truncated": False,
            "reward": float(right(policy, prompt, sample)),
            "status": "ok",
            "scores": [{"name": "correct", "value": float(right(policy, prompt, sample)), "status": "ok"}],
        }
        for prompt in range(first_prompt, first_prompt + prompts)
        for sample, greedy in kinds
    ]


def unread(row: dict[str, Any], completion: str) -> None:
    """Make a rollout one whose answer cannot be read."""
    scores = [{"name": "correct", "value": 0.0, "status": "unparseable"}]
    row |= {"completion": completion, "reward": 0.0, "status": "unparseable", "scores": scores}


def metrics(policy: str) -> dict[str, float]:
    """As the stage `evaluate` writes them."""
    one = dict(FIGURES[policy])
    bounds = {"score_low": one.pop("low"), "score_high": one.pop("high")}
    shares = {"pass_at_1": one["score"], "pass_at_2": one["score"], "greedy": 0.5, "reward_format": 0.9}
    return {**bounds, **shares, "truncated": 0.01, "length": 12.5, **one}


def rewritten(folder: Path, completions: Completions) -> Path:
    """The same workspace as if it had been evaluated with this setting of `completions`."""
    for policy in POLICIES:
        file = folder / "results" / policy / "rollouts.parquet"
        write_table(with_ids(select_text(read_table(file, "rollouts"), completions), "rollouts"), file, "rollouts")
    return folder


def graded(folder: Path) -> Path:
    """The same workspace as if the score were a number from -1 to 3, and the prompts of no task."""
    for policy in POLICIES:
        rows = [
            {**row, "task": "", "reward": 4 * row["reward"] - 1.0 + row["sample"] / 8, "scores": []}
            for row in rollouts(policy)
        ]
        put_policy(folder, policy, rows)
        old = metrics(policy)
        score = {key: 4 * old[key] - 1 for key in ("score", "score_low", "score_high", "greedy")}
        parts = {"reward_my:brief": 0.25, "parsed": 1.0, "truncated": 0.01, "length": 12.5, "kl_k1": old["kl_k1"]}
        put_json(folder / "results" / policy / "metrics.json", {**score, **parts})
    return folder


def make(folder: Path, params: str = PARAMS) -> Path:
    """Write the whole workspace into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "params.yaml").write_text(params, encoding="utf-8")
    for policy in POLICIES:
        put_policy(folder, policy, rollouts(policy))
    put_json(folder / "metrics/sft/main.json", {"steps": 50, "rows": 1500, "tokens": 18484, "heldout_loss": 0.31})
    put_json(folder / "metrics/reward/main.json", {"steps": 9, "pairs": 858, "heldout_accuracy": 0.875})
    put_json(folder / "metrics/online/grpo.json", {"algorithm": "grpo", "steps": 60, "reward": 0.9})
    put_curve(folder / "plots/base/tiny.csv", {"loss": [6 / (1 + step) for step in range(40)]})
    put_curve(folder / "plots/preference/dpo.csv", {"loss": [0.7 - step / 100 for step in range(20)]})
    grpo = {
        "loss": [0.1 for _ in range(60)],
        "reward": [step / 60 for step in range(60)],
        "kl_k3": [step / 300 for step in range(60)],
        "entropy": [1 - step / 100 for step in range(60)],
        "length": [10 + step / 6 for step in range(60)],
    }
    put_curve(folder / "plots/online/grpo.csv", grpo)
    return folder


def watch(folder: Path) -> None:
    """The same workspace as if the online run had been watched: over-optimised after step 30 of 60."""
    file = folder / "plots/online/grpo.csv"
    titles, *lines = file.read_text(encoding="utf-8").splitlines()
    looks = {0: (0.3, 0.1), 30: (0.6, 0.5), 60: (0.1, 0.9)}
    names = [f"heldout_{name}{end}" for name in ("true", "proxy") for end in ("", "_low", "_high")]
    cells = {
        step: ",".join(f"{value + change:g}" for value in look for change in (0, -0.1, 0.1))
        for step, look in looks.items()
    }
    lines = [f"{line},{cells.get(step, ',' * (len(names) - 1))}" for step, line in enumerate(lines)]
    lines.append(f"60,{',' * (titles.count(',') - 1)},{cells[60]}")
    file.write_text("\n".join([f"{titles},{','.join(names)}", *lines, ""]), encoding="utf-8")
    steps = {"steps": 60, "best_step": 30, "kept_step": 60, "over_optimised_step": 60}
    put_json(folder / "metrics/online/grpo.json", {"algorithm": "grpo", **steps})


def copy_results(policy: str, label: str, folder: Path = Path()) -> None:
    """Give a label the results of another one, as an evaluation with the same samples would write them."""
    old, new = folder / "results" / policy, folder / "results" / label
    shutil.copytree(old, new, dirs_exist_ok=True)
    rows = read_table(old / "rollouts.parquet", "rollouts").with_columns(policy=pl.lit(label))
    write_table(with_ids(rows.drop("id"), "rollouts"), new / "rollouts.parquet", "rollouts")


def put_policy(folder: Path, policy: str, rows: list[dict[str, Any]]) -> None:
    put_json(folder / "results" / policy / "metrics.json", metrics(policy))
    write_table(from_rows(rows, "rollouts"), folder / "results" / policy / "rollouts.parquet", "rollouts")


def rate(folder: Path) -> Path:
    """Let all policies meet each other, as the run `main` of `evaluate.ratings`."""
    params = RatingRun()
    pairs = pairs_of(params, "evaluate.ratings.main", POLICIES)
    found = figures(played(params, "evaluate.ratings.main", pairs), params, "evaluate.ratings.main", pairs)
    put_json(folder / "metrics/ratings/main.json", found)
    file = folder / "params.yaml"
    file.write_text(f"{file.read_text(encoding='utf-8')}  ratings: {{main: {{}}}}\n", encoding="utf-8")
    return folder


def put_json(path: Path, data: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data), encoding="utf-8")


def put_timings(folder: Path, stage: str, total: float) -> None:
    """As `report_timings` writes them after the stage's record."""
    name = f"{stage.replace('@', '/')}.json"
    digest = hashlib.sha256((folder / "records" / name).read_bytes()).hexdigest()[:16]
    put_json(folder / "timings" / name, {"stage": stage, "record": digest, "total": total})


def put_curve(path: Path, columns: Mapping[str, list[float]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [",".join(["step", *columns])]
    rows += [
        ",".join(str(value) for value in (step, *values))
        for step, values in enumerate(zip(*columns.values(), strict=True))
    ]
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")


def many(folder: Path, settings: int = 15, seeds: int = 2, prompts: int = 200, letters: int = 1200) -> Path:
    """Write a workspace of `settings` times `seeds` policies whose answers have so many letters."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [(nth, seed, f"lr{nth}_s{seed}") for nth in range(settings) for seed in range(seeds)]
    runs = "\n".join(
        f"    {name}: {{algorithm: grpo, start: sft/main, seed: {seed}, optimizer: {{lr: {nth + 1}.0e-4}}}}"
        for nth, seed, name in names
    )
    listed = ", ".join(f"{name}: online/{name}" for _, _, name in names)
    settings_of = f"{{data: two_step/prompts, reference: sft/main, reward_model: none, prompts: {prompts}, samples: 2}}"
    (folder / "params.yaml").write_text(
        f"sft: {{runs: {{main: {{start: base/tiny, data: two_step/chat}}}}}}\nonline:\n  runs:\n{runs}\n"
        f"evaluate:\n  settings: {settings_of}\n  policies: {{sft: sft/main, {listed}}}\n",
        encoding="utf-8",
    )
    for place, policy in enumerate(["sft", *(name for _, _, name in names)]):
        rows = [
            {
                **row,
                "policy": policy,
                "completion": f"{row['completion'] * 99}"[:letters],
                "reward": float((row["sample"] * 7 + place + nth) % 5 < 3),
            }
            for nth, row in enumerate(rollouts("sft", prompts=prompts))
        ]
        write_table(from_rows(rows, "rollouts"), folder / "results" / policy / "rollouts.parquet", "rollouts")
        put_json(
            folder / "results" / policy / "metrics.json",
            {**metrics("sft"), "score": 0.3 + place / 99, "kl_k1": place / 9},
        )
        if place:
            curve = {
                name: [(nth * (step + 1)) % 37 / 37 + place / 20 for step in range(200)]
                for nth, name in enumerate(("reward", "kl_k3", "entropy", "length", "grad_norm"))
            }
            put_curve(folder / f"plots/online/{policy}.csv", curve)
    return folder
