"""A policy that exploits its reward model: the alarm, and two cures; and what watching costs.

python -m benchmarks.over_optimisation         run what is missing in .learning, then write reports/over-optimisation.md
python -m benchmarks.over_optimisation --table write the page and its plot from the results that are there
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import ROOT
from benchmarks.learning import prepare, train_and_evaluate, write_params
from benchmarks.learning_trials import scores_per_prompt
from benchmarks.machine import machine
from docs.make.over_optimisation import draw, page
from posttrain.pipeline.compare.statistics import ALPHA, difference
from posttrain.settings.plain import merge

RESULTS = ROOT / "benchmarks" / "results" / "over-optimisation.json"
PAGE, FIGURE = ROOT / "docs" / "reports" / "over-optimisation.md", ROOT / "docs" / "reports" / "over-optimisation.svg"
SEEDS = (1, 2, 3)
SHARED: dict[str, Any] = {
    "algorithm": "grpo",
    "start": "sft/main",
    "data": "two_step/prompts",
    "corpus": "none",
    "reward_model": "reward/main",
    "reward": {"model": 1.0},
    "kl": "none",
    "rollout": {"rounds": 30, "prompts": 8, "group_size": 8, "minibatches": 2},
    "optimizer": {"lr": 1e-3, "schedule": "constant"},
    "watch": {"every": 6, "prompts": 100, "reward": {"correct": 1.0}},
}
CASES: dict[str, dict[str, Any]] = {
    "no KL": {},
    "KL": {"kl": {"type": "loss", "beta": 0.4}},
    "keep best, stop early": {"watch": {"keep": "best", "patience": 2}},
    "KL, keep best": {"kl": {"type": "loss", "beta": 0.4}, "watch": {"keep": "best"}},
}
OVERHEAD: dict[str, dict[str, Any]] = {
    "nothing": {"rollout": {"gap_rows": 0}, "watch": None},
    "sampler gap, 4 rows a round": {"watch": None},
    "and 64 held-out prompts every 10 steps": {"watch": {"every": 10, "prompts": 64}},
}
REPEATS = 3


def measure(place: Path) -> dict[str, Any]:
    """Return every case with every seed: its evaluations while it learned, and its score on the test prompts."""
    found: dict[str, Any] = {}
    for case, over in CASES.items():
        for seed in SEEDS:
            run = f"over-{case.replace(',', '').replace(' ', '-')}-{seed}"
            metrics = Path("metrics") / "online" / f"{run}.json"
            if not (Path("results") / run / "metrics.json").is_file():
                train_and_evaluate("online", run, {**merge(SHARED, over), "seed": seed})
            figures = json.loads(metrics.read_text(encoding="utf-8"))
            test = scores_per_prompt(Path("results") / run)
            found.setdefault(case, []).append({"seed": seed, **figures, "curve": curve(run), "test": test})
    start = scores_per_prompt(place / "pipeline" / "results" / "sft")
    return {"cases": found, "start": start, "differences": differences(found, start), "machine": machine()}


def curve(run: str) -> dict[str, list[float]]:
    """Return the evaluations of a run while it learned."""
    import polars as pl

    frame = pl.read_csv(Path("plots") / "online" / f"{run}.csv", infer_schema_length=None)
    names = ["step", *(name for name in frame.columns if name.startswith("heldout"))]
    found: dict[str, list[float]] = frame.select(names).drop_nulls().to_dict(as_series=False)
    return found


def differences(found: dict[str, Any], start: Any) -> dict[str, list[float]]:
    """Test score of each case less that of the start, with a 95 % interval over prompts and seeds."""
    made = {}
    for case, runs in found.items():
        change = difference(np.array([one["test"] for one in runs]), np.array([start]))
        half = change.half(ALPHA)
        made[case] = [change.mean, change.mean - half, change.mean + half]
    return made


def overhead() -> dict[str, list[float]]:
    """CPU seconds of the same training with and without watching, repeated in turn."""
    from stages import online

    spent: dict[str, list[float]] = {name: [] for name in OVERHEAD}
    for repeat in range(REPEATS):
        for number, (name, over) in enumerate(OVERHEAD.items()):
            run = f"overhead-{number}-{repeat}-{os.getpid()}"
            settings = {key: value for key, value in merge(SHARED, over).items() if value is not None}
            shared = {"reward_model": "none", "reward": {"correct": 1.0, "format": 0.2}}
            write_params({"online": {"runs": {run: {**settings, **shared}}}})
            started = time.process_time()
            online.main(run)
            spent[name].append(round(time.process_time() - started, 3))
    return spent


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.over_optimisation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--workspace", type=Path, default=ROOT / ".learning", help="where it trains")
    parser.add_argument("--table", action="store_true", help="only write the page")
    options = parser.parse_args(arguments)
    place: Path = options.workspace.resolve()
    if not options.table:
        place.mkdir(exist_ok=True)
        prepare(place)
        os.environ["DVC_ROOT"] = str(place / "worker0")  # where checkpoints go
        os.chdir(place / "worker0")
        results = measure(place)
        kept = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {}
        results["overhead"] = kept.get("overhead") or overhead()
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    results["differences"] = differences(results["cases"], results["start"])
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    FIGURE.write_text(draw(results), encoding="utf-8")
    PAGE.write_text(page(results), encoding="utf-8")
    print(f"written: {PAGE}, {FIGURE}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
