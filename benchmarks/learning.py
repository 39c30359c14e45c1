"""Does each algorithm learn? All are trained from one SFT model, over seeds, and measured on the test prompts.

python -m benchmarks.learning --search   choose each learning rate on the held-out prompts (writes learning_rates.json)
python -m benchmarks.learning            run what is missing, then write docs/reports/learning.md
python -m benchmarks.learning --table    write the page from the results that are there
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks import ROOT
from benchmarks.learning_trials import (
    ANSWER,
    INSTRUCTED,
    RATES,
    RESULT,
    SEEDS,
    STEPS,
    Trial,
    final_trials,
    read_result,
    result_file,
    scores_per_prompt,
    search_trials,
    subjects,
)
from docs.make.learning import write_page

RECIPE = ROOT / "recipes" / "smoke.yaml"
WORKERS = 2
NEEDED = ("data_samples@compared", "reward@main", "evaluate@base", "evaluate@sft")
"""The stages that trials start from, with what they need."""
REWARDS: dict[str, dict[str, Any]] = {
    "pairs": {},
    "pairs, margins": {"margins": "column"},
    "ranks": {"compare": "ranks"},
}
"""Objectives of the reward model that are compared by their held-out accuracy."""


def prepare(place: Path) -> None:
    """The pipeline up to the reward model and the evaluations of base and sft, once."""
    pipeline = place / "pipeline"
    if not pipeline.is_dir():
        subprocess.run([sys.executable, "-m", "tests.workspace", str(pipeline), str(RECIPE)], check=True, cwd=ROOT)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    command = [sys.executable, "-m", "dvc", "repro", *NEEDED]
    subprocess.run(command, check=True, cwd=pipeline, env={**os.environ, "PATH": path})
    for part in range(WORKERS):
        folder = place / f"worker{part}"
        folder.mkdir(exist_ok=True)
        for shared in ("data", "models"):
            if not (folder / shared).is_symlink():
                (folder / shared).symlink_to(pipeline / shared)


def instruct(place: Path) -> None:
    """Train the teacher of context_distill: its demonstrations have a system turn with their form or the answer."""
    import polars as pl

    from posttrain.data.columns import with_ids
    from posttrain.pipeline.tables.store import write_table
    from stages import sft

    os.environ["DVC_ROOT"] = str(place / "worker0")
    os.chdir(place / "worker0")
    if (Path("models") / INSTRUCTED).is_dir():
        return
    rows = pl.read_parquet("data/two_step/chat.parquet").drop("id").to_dicts()
    for nth, row in enumerate(rows):
        answer = row["messages"][-1]["content"]
        form = STEPS if "\n" in answer else RESULT
        known = ANSWER.format(answer=answer.rpartition("\n")[2].removeprefix("#### "))
        row["messages"].insert(0, {"role": "system", "content": form if nth % 2 else known})
    Path("data/instructed").mkdir(exist_ok=True)
    write_table(with_ids(pl.DataFrame(rows), "chat"), Path("data/instructed/chat.parquet"), "chat")
    settings = yaml.safe_load((place / "pipeline/params.yaml").read_text(encoding="utf-8"))["sft"]["runs"]["main"]
    write_params({"sft": {"runs": {"instructed": {**settings, "data": "instructed/chat"}}}})
    sft.main("instructed")


def work(place: Path, trials: Sequence[Trial], part: int) -> None:
    """Train and measure this worker's share of what is missing."""
    os.environ["DVC_ROOT"] = str(place / f"worker{part}")  # where checkpoints go
    os.chdir(place / f"worker{part}")
    for trial in trials[part::WORKERS]:
        file = result_file(place, trial)
        if not file.is_file():
            file.parent.mkdir(exist_ok=True)
            file.write_text(json.dumps(attempt(trial)), encoding="utf-8")


def attempt(trial: Trial) -> dict[str, Any]:
    """Return one run and its measure, or why it failed."""
    from posttrain.errors import PosttrainError

    section, started = trial.subject.section, time.monotonic()
    try:
        train_and_evaluate(section, trial.run, trial.settings, trial.split)
    except PosttrainError as error:
        print(f"{trial.subject.label} {trial.rate:g} {trial.seed}: {error}", flush=True)
        return {"failed": str(error)}
    print(f"{trial.rate:g} {time.monotonic() - started:.0f} s", flush=True)
    metrics = json.loads((Path("results") / trial.run / "metrics.json").read_text(encoding="utf-8"))
    right = scores_per_prompt(Path("results") / trial.run)
    return {"metrics": metrics, "right": right, **claimed_metrics(f"{section}/{trial.run}")}


def train_and_evaluate(section: str, run: str, settings: dict[str, Any], split: str = "test") -> None:
    """Train a run, and measure it by 8 samples of each of 120 prompts."""
    from stages import completions, distill, evaluate, online, preference

    measured = {"data": "two_step/prompts", "reference": "sft/main", "reward_model": "none", "split": split}
    evaluated = {"settings": {**measured, "prompts": 120, "samples": 8}, "policies": {run: f"{section}/{run}"}}
    write_params({section: {"runs": {run: settings}}, "evaluate": evaluated})
    {"online": online.main, "preference": preference.main, "distill": distill.main}[section](run)
    completions.main(run)
    evaluate.main(run)


def write_params(params: dict[str, Any]) -> None:
    """params.yaml of this worker's folder, which is YAML and JSON at once."""
    Path("params.yaml").write_text(json.dumps(params), encoding="utf-8")


def claimed_metrics(name: str) -> dict[str, float]:
    """Metrics of the steps that a method promises: TRPO's largest KL, a teacher's divergence at the start and end."""
    import polars as pl

    frame = pl.read_csv(Path("plots") / f"{name}.csv", infer_schema_length=None)
    seen: dict[str, float] = {}
    if "trust_kl" in frame.columns:
        seen["trust_kl"] = float(frame["trust_kl"].max())  # type: ignore[arg-type]
    if "teacher_kl" in frame.columns:
        ends = frame["teacher_kl"].head(5).mean(), frame["teacher_kl"].tail(5).mean()
        seen |= {"teacher_kl_first": float(ends[0]), "teacher_kl_last": float(ends[1])}  # type: ignore[arg-type]
    return seen


def rewards(place: Path) -> None:
    """The reward model by each objective and seed: its held-out accuracy."""
    from stages import reward

    file = place / "rewards.json"
    measured: dict[str, list[float]] = {}
    os.environ["DVC_ROOT"] = str(place / "worker0")
    os.chdir(place / "worker0")
    shutil.rmtree("checkpoints/reward/trial", ignore_errors=True)  # of a run that was killed, maybe with other code
    inputs = {"start": "sft/main", "data": "compared/pairs", "demonstrations": "none"}
    for label, objective in REWARDS.items():
        feedback = "compared/feedback" if objective.get("compare") == "ranks" else "none"
        for seed in SEEDS:
            shared = {**inputs, "feedback": feedback, "epochs": 2.0, "optimizer": {"lr": 1e-3}}
            write_params({"reward": {"runs": {"trial": {**shared, "seed": seed, "objective": objective}}}})
            reward.main("trial")
            summary = json.loads(Path("metrics/reward/trial.json").read_text(encoding="utf-8"))
            measured.setdefault(label, []).append(summary["heldout_accuracy"])
    file.write_text(json.dumps(measured), encoding="utf-8")


def choose(place: Path) -> None:
    """Keep each subject's best rate by pass@1 on the held-out prompts."""
    best: dict[str, tuple[float, float]] = {}
    for trial in search_trials():
        result = read_result(place, trial)
        score = -1.0 if result is None or "failed" in result else result["metrics"]["score"]
        best[trial.subject.label] = max(best.get(trial.subject.label, (-1.0, 0.0)), (score, trial.rate))
    RATES.write_text(json.dumps({label: rate for label, (_, rate) in best.items()}, indent=1) + "\n", encoding="utf-8")
    print(f"written: {RATES}")


def run_all(place: Path, phase: str) -> None:
    """All workers of a phase, side by side."""
    command = [sys.executable, "-m", "benchmarks.learning", "--workspace", str(place), "--phase", phase, "--part"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    workers = [subprocess.Popen([*command, str(i)], cwd=ROOT, env=environment) for i in range(WORKERS)]
    ended = [worker.wait() for worker in workers]
    if any(ended):
        raise SystemExit(1)


PHASES = {
    "search": lambda: [one for one in search_trials() if one.subject.section != "distill"],
    "search-distill": lambda: [one for one in search_trials() if one.subject.section == "distill"],
    "final": lambda: [one for one in final_trials() if one.subject.section != "distill"],
    "final-distill": lambda: [one for one in final_trials() if one.subject.section == "distill"],
}
"""In order: distillation needs a teacher, which is the final run of another subject."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.learning", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workspace", type=Path, default=ROOT / ".learning", help="where it trains and keeps results")
    parser.add_argument("--search", action="store_true", help="choose the learning rates again")
    parser.add_argument("--table", action="store_true", help="only write the page")
    parser.add_argument("--phase", choices=PHASES, help=argparse.SUPPRESS)
    parser.add_argument("--part", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    place: Path = options.workspace.resolve()
    if options.phase is not None:
        work(place, PHASES[options.phase](), options.part)
        return 0
    if not options.table:
        place.mkdir(exist_ok=True)
        prepare(place)
        instruct(place)
        if options.search:
            run_all(place, "search")
            choose(place)
            run_all(place, "final")
            run_all(place, "search-distill")
            choose(place)
        run_all(place, "final")
        run_all(place, "final-distill")
        rewards(place)
    write_page(place, ROOT / "docs" / "reports" / "learning.md", subjects())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
