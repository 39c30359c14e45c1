"""GRPO on two-step problems with rollouts one round ahead and without, over six seeds, by the built-in decoder.

python -m benchmarks.ahead    runs it in a scratch copy, and writes benchmarks/results/ahead.json and its table

Remove ahead.json to measure again.
"""

from __future__ import annotations

import csv
import json
import tempfile
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from ruamel.yaml import YAML

from benchmarks.machine import machine
from posttrain.files import write_json, write_text
from tests.workspace import ROOT, dvc, make_workspace

SEEDS = range(1, 7)
RECIPE = ROOT / "recipes/smoke.yaml"
KEPT = ROOT / "benchmarks/results/ahead.json"
PAGE = ROOT / "docs/reports/studies.md"
BEGIN, END = "<!-- ahead:begin -->", "<!-- ahead:end -->"
ROUNDS, PARTS = 40, 5
"""The curve is the mean reward of each of so many parts of the run."""


def settings() -> dict[str, Any]:
    """Return the smoke recipe with a run of each seed, with `ahead` 0 and 1."""
    params: dict[str, Any] = YAML(typ="safe", pure=True).load(RECIPE.read_text(encoding="utf-8"))
    grpo = params["online"]["runs"]["grpo"]
    params["online"]["runs"] = {
        f"ahead{ahead}_{seed}": {
            **grpo, "seed": seed, "correction": "truncate",
            "rollout": {**grpo["rollout"], "rounds": ROUNDS, "ahead": ahead},
        }
        for ahead in (0, 1) for seed in SEEDS
    }  # fmt: skip
    params["evaluate"]["policies"] = {
        "sft": "sft/main",
        **{name: f"online/{name}" for name in params["online"]["runs"]},
    }
    return params


def measure(folder: Path) -> dict[str, Any]:
    """Return the score of each seed and the mean curve of reward, by `ahead`."""
    file = folder / "params.json"
    file.write_text(json.dumps(settings()), encoding="utf-8")
    workspace = make_workspace(folder / "workspace", file)
    done = dvc(workspace, "repro")
    if done.returncode:
        raise RuntimeError(f"dvc repro failed in {workspace}: {done.stdout}")
    found: dict[str, Any] = {"sft": score(workspace, "sft"), "machine": machine()}
    for ahead in (0, 1):
        names = [f"ahead{ahead}_{seed}" for seed in SEEDS]
        curves = [curve(workspace, name) for name in names]
        found[f"ahead {ahead}"] = {
            "scores": [round(score(workspace, name), 4) for name in names],
            "curve": [round(mean(part), 4) for part in zip(*curves, strict=True)],
        }
    return found


def score(workspace: Path, name: str) -> float:
    """pass@1 on the test prompts."""
    return float(json.loads((workspace / f"results/{name}/metrics.json").read_text(encoding="utf-8"))["score"])


def curve(workspace: Path, name: str) -> list[float]:
    """Return the mean reward in each part of a run."""
    with (workspace / f"plots/online/{name}.csv").open(encoding="utf-8", newline="") as file:
        rewards = [float(row["reward"]) for row in csv.DictReader(file)]
    size = len(rewards) // PARTS
    return [mean(rewards[part * size : (part + 1) * size]) for part in range(PARTS)]


def table(found: dict[str, Any]) -> str:
    """Return both settings: mean, deviation and every seed."""
    lines = [f"| | pass@1, mean ± deviation of {len(SEEDS)} seeds | each seed | mean reward in each fifth of the run |"]
    lines.append("|---|---:|---|---|")
    for name in ("ahead 0", "ahead 1"):
        scores, rewards = found[name]["scores"], found[name]["curve"]
        each, curve = (", ".join(f"{one:.2f}" for one in part) for part in (scores, rewards))
        lines.append(f"| `{name.replace(' ', ': ')}` | {mean(scores):.3f} ± {stdev(scores):.3f} | {each} | {curve} |")
    return "\n".join(lines)


def main() -> None:
    """Measure what is not kept, and write the table into the page."""
    if not KEPT.is_file():
        with tempfile.TemporaryDirectory() as folder:
            write_json(KEPT, measure(Path(folder)))
    found = json.loads(KEPT.read_text(encoding="utf-8"))
    note = f"From sft with {found['sft']:.3f}; {ROUNDS} rounds. {found['machine']}."
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    write_text(PAGE, f"{before}{BEGIN}\n{table(found)}\n\n{note}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
