"""A tiny mixture of experts learns two-step problems, with the load-balancing loss and without, over three seeds.

python -m benchmarks.mixture    runs what benchmarks/results/mixture.json has not, and writes its table

Remove mixture.json to measure again.
"""

from __future__ import annotations

import csv
import json
import tempfile
from pathlib import Path
from statistics import mean

from benchmarks.machine import machine
from posttrain.files import write_json, write_text
from tests.workspace import ROOT, dvc, make_workspace

SEEDS = (1, 2, 3)
RECIPE = ROOT / "recipes/mixture.yaml"
KEPT = ROOT / "benchmarks/results/mixture.json"
PAGE = ROOT / "docs/reports/studies.md"
BEGIN, END = "<!-- mixture:begin -->", "<!-- mixture:end -->"
RUNS = {"with": "balanced", "without": "free"}
STEPS = 20
"""The last steps of a run, whose routing is averaged."""
ROUTING = {"expert_load_max": "largest load of an expert", "router_entropy": "router entropy"}
STAGES = {"base": "base", "sft": "SFT"}
FIGURES = {
    "base_loss": "held-out loss, base",
    "sft_loss": "held-out loss, SFT",
    "base_score": "right answers, base",
    "sft_score": "right answers, SFT",
    **{f"{key}_{name}": f"{label}, {stage}" for name, label in ROUTING.items() for key, stage in STAGES.items()},
}

Figures = dict[str, dict[str, float]]
"""Run -> figure -> value."""


def measure(seed: int, folder: Path) -> Figures:
    """Return both runs with one seed: held-out losses, right answers, and the routing at the end."""
    folder.mkdir(exist_ok=True)
    params = folder / "params.yaml"
    recipe = RECIPE.read_text(encoding="utf-8")
    params.write_text(recipe.replace("\nseed: 0\n", f"\nseed: {seed}\n"), encoding="utf-8")
    workspace = make_workspace(folder / "workspace", params)
    done = dvc(workspace, "repro")
    if done.returncode:
        raise RuntimeError(f"dvc repro failed in {workspace}: {done.stdout} {done.stderr}")
    return {run: figures(workspace, run) for run in RUNS.values()}


def figures(workspace: Path, run: str) -> dict[str, float]:
    """Return one run's figures of base and SFT."""
    found: dict[str, float] = {}
    for stage, policy in (("base", f"base_{run}"), ("sft", run)):
        metrics = json.loads((workspace / f"metrics/{stage}/{run}.json").read_text(encoding="utf-8"))
        score = json.loads((workspace / f"results/{policy}/metrics.json").read_text(encoding="utf-8"))["score"]
        with (workspace / f"plots/{stage}/{run}.csv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))[-STEPS:]
        routing = {f"{stage}_{name}": mean(float(row[name]) for row in rows) for name in ROUTING}
        found |= {f"{stage}_loss": metrics["heldout_loss"], f"{stage}_score": score, **routing}
    return found


def table(results: list[Figures]) -> str:
    """Return each figure, with and without the loss: every seed and the mean."""
    lines = [f"| | {' | '.join(f'{name} the loss' for name in RUNS)} |", "|---|---:|---:|"]
    for key, label in FIGURES.items():
        cells = []
        for run in RUNS.values():
            values = [result[run][key] for result in results]
            cells.append(f"{mean(values):.3f} ({', '.join(f'{value:.3f}' for value in values)})")
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Run the seeds that are missing and write the table into the page."""
    kept: dict[str, Figures] = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.is_file() else {}
    for seed in SEEDS:
        if str(seed) not in kept:
            with tempfile.TemporaryDirectory() as folder:
                kept[str(seed)] = measure(seed, Path(folder))
            write_json(KEPT, kept)
    note = f"Mean (seeds {', '.join(map(str, SEEDS))}); routing: mean of the last {STEPS} steps. {machine()}."
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    shown = table([kept[str(seed)] for seed in SEEDS])
    write_text(PAGE, f"{before}{BEGIN}\n{shown}\n\n{note}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
