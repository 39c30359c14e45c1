"""Does each objective teach? Every row trained from one SFT model, over seeds, measured on the test prompts.

python -m benchmarks.learning            run what is missing, then write docs/learning.md
python -m benchmarks.learning --table    write the table from the results that are there
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.algorithms.policy import POLICY_ROWS
from posttrain.algorithms.preference import PREFERENCE_ROWS

ROOT = Path(__file__).resolve().parents[1]
RECIPE = ROOT / "recipes" / "smoke.yaml"
SEEDS = (1, 2, 3)
WORKERS = 2

ONLINE: dict[str, Any] = {
    "start": "sft",
    "reward": {"correct": 1.0, "format": 0.2},
    "rollout": {"rounds": 25, "prompts": 8, "group_size": 8, "minibatches": 2},
    "optimizer": {"lr": 4e-4, "schedule": "linear"},
}
PREFERENCE: dict[str, Any] = {"start": "sft", "epochs": 1.0, "optimizer": {"lr": 2e-4, "schedule": "linear"}}

OWN: dict[str, dict[str, Any]] = {
    "slic": {"delta": 5.0, "optimizer": {"lr": 6e-4, "schedule": "linear"}},
    "cpo": {"epochs": 3.0, "optimizer": {"lr": 3e-4, "schedule": "linear"}},
    "orpo": {"beta": 5.0, "epochs": 3.0, "optimizer": {"lr": 4e-4, "schedule": "linear"}},
    "orpo_from_base": {"start": "base", "epochs": 6.0, "optimizer": {"lr": 2e-3, "schedule": "linear"}},
    "kto": {"optimizer": {"lr": 1e-4, "schedule": "linear"}},
    "bco": {"optimizer": {"lr": 1e-4, "schedule": "linear"}},
}
"""What a row needs otherwise than the settings above; found by trying with seed 0, the other seeds came after."""


@dataclass(frozen=True)
class Trial:
    """One row with one seed."""

    section: str
    row: str
    label: str
    seed: int

    @property
    def settings(self) -> dict[str, Any]:
        """The run as params.yaml would hold it."""
        shared = ONLINE if self.section == "online" else PREFERENCE
        own = OWN.get(self.label, {})
        return {"algorithm": self.row, "seed": self.seed, **shared, **own}

    @property
    def run(self) -> str:
        """The run's name, which changes with its settings: a result is never taken for another one's."""
        mark = hashlib.sha256(json.dumps(self.settings, sort_keys=True).encode()).hexdigest()[:8]
        return f"{self.label}-{self.seed}-{mark}"


def trials() -> Iterator[Trial]:
    """Seed by seed, so that a run that is cut off has something to say about every row."""
    for seed in SEEDS:
        for row in POLICY_ROWS:
            yield Trial("online", row, row, seed)
        for row in PREFERENCE_ROWS:
            yield Trial("preference", row, row, seed)
        yield Trial("preference", "orpo", "orpo_from_base", seed)


def prepare(workspace: Path) -> None:
    """The pipeline up to the reward model and the evaluations of base and sft, once."""
    if not workspace.is_dir():
        subprocess.run([sys.executable, "-m", "tests.workspace", str(workspace), str(RECIPE)], check=True, cwd=ROOT)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    stages = ["pairs", "reward", "evaluate_model@base", "evaluate_model@sft"]
    if not all((workspace / "results" / name / "metrics.json").is_file() for name in ("base", "sft")):
        command = [sys.executable, "-m", "dvc", "repro", *stages]
        subprocess.run(command, check=True, cwd=workspace, env={**os.environ, "PATH": path})
    runs: dict[str, Any] = {"preference": {"runs": {}}, "online": {"runs": {}}}
    for trial in trials():
        runs[trial.section]["runs"][trial.run] = trial.settings
    (workspace / "params.yaml").write_text(json.dumps(runs), encoding="utf-8")


def work(workspace: Path, part: int, parts: int) -> None:
    """Train and measure this worker's share of what is missing."""
    from posttrain.errors import PosttrainError
    from posttrain.evaluate.policy import EvaluateParams, evaluate, summary
    from posttrain.online.run import train_online
    from posttrain.train.preferences import train_preference

    os.chdir(workspace)
    for i, trial in enumerate(trials()):
        file = cached(Path(), trial)
        if i % parts != part or file.is_file():
            continue
        started = time.monotonic()
        try:
            (train_online if trial.section == "online" else train_preference)(trial.run)
            name = f"{trial.section}/{trial.run}"
            metrics = evaluate(name, EvaluateParams(prompts=120, samples=8))
            print(
                f"{trial.label} {trial.seed}: {time.monotonic() - started:.0f} s, {summary(name, metrics)}", flush=True
            )
            found = {"metrics": metrics, "right": per_prompt(Path("results") / name), **watched(trial)}
        except (PosttrainError, KeyError, ValueError) as error:
            print(f"{trial.label} {trial.seed}: failed: {error}", flush=True)
            found = {"failed": str(error)}
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(found), encoding="utf-8")


def cached(workspace: Path, trial: Trial) -> Path:
    """Where a trial's result lies."""
    return workspace / "learning" / f"{trial.run}.json"


def per_prompt(folder: Path) -> list[float]:
    """Share of right samples of each prompt, in the order of the prompts."""
    import polars as pl

    frame = pl.read_parquet(folder / "rollouts.parquet").filter(~pl.col("greedy"))
    means = frame.group_by("prompt_id", maintain_order=True).agg(pl.col("reward").mean())
    return means["reward"].to_list()


def watched(trial: Trial) -> dict[str, float]:
    """The largest KL of any trust region step."""
    import polars as pl

    frame = pl.read_csv(Path("plots") / trial.section / f"{trial.run}.csv", infer_schema_length=None)
    return {"trust_kl": float(frame["trust_kl"].max())} if "trust_kl" in frame.columns else {}  # type: ignore[arg-type]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning", description=__doc__)
    parser.add_argument("--workspace", type=Path, default=ROOT / ".learning", help="where it trains and keeps results")
    parser.add_argument("--table", action="store_true", help="only write the table")
    parser.add_argument("--part", type=int, help="(used by the workers)")
    options = parser.parse_args(arguments)
    workspace: Path = options.workspace.resolve()
    if options.part is not None:
        work(workspace, options.part, WORKERS)
        return 0
    if not options.table:
        prepare(workspace)
        command = [sys.executable, "-m", "benchmarks.learning", "--workspace", str(workspace), "--part"]
        workers = [
            subprocess.Popen([*command, str(i)], cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"})
            for i in range(WORKERS)
        ]
        ended = [worker.wait() for worker in workers]
        if any(ended):
            return 1
    from benchmarks.learning_table import write_table

    write_table(workspace, ROOT / "docs" / "learning.md", list(trials()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
