"""Four planned questions on recipes/smoke.yaml, answered by `posttrain compare` and by numpy alone.

python -m benchmarks.planned_questions                     run what is missing (20 CPU minutes), then print both answers
python -m benchmarks.planned_questions --seeds 1,2,3,4,5   the same with more seeds; those that have run are kept

Is dr_grpo, gspo or cispo better than grpo, and does a KL of 0.04 in the loss help? A killed run resumes.
"""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import yaml

from benchmarks import ROOT
from tests.workspace import environment, git

ALGORITHMS = ("grpo", "dr_grpo", "gspo", "cispo")
SWEEP: dict[str, Any] = {
    "grid": {
        "online.runs.grpo.algorithm": list(ALGORITHMS),
        "online.runs.grpo.kl": ["none", {"type": "loss", "beta": 0.04}],
    },
    "seeds": [1, 2, 3],
    "targets": ["online@grpo", "evaluate@grpo"],
}
NAME, DRAWS = "planned", 1_000_000
Floats = np.ndarray[Any, np.dtype[np.float64]]
Key = tuple[str, str, int]
"""Algorithm, KL, seed."""


def prepare(place: Path) -> None:
    """Make the workspace with the sweep, once."""
    if not place.is_dir():
        command = [sys.executable, "-m", "tests.workspace", str(place), str(ROOT / "recipes" / "smoke.yaml")]
        subprocess.run(command, check=True, cwd=ROOT)
    file = place / "sweeps" / f"{NAME}.yaml"
    if not file.is_file():
        file.parent.mkdir(exist_ok=True)
        file.write_text(yaml.safe_dump(SWEEP), encoding="utf-8")
        git(place, "add", "--all")
        git(place, "commit", "--quiet", "--message", "the planned sweep")


def posttrain(place: Path, *words: str) -> None:
    """Run a command in the workspace, with the workspace's own code. Its output is printed as it comes."""
    env = {**environment(), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-m", "posttrain", *words], check=True, cwd=place, env=env)


def scores(place: Path, seeds: Sequence[int]) -> dict[Key, Floats]:
    """Return the score of each prompt, for each training; read without posttrain."""
    from dvc.api import DVCFileSystem

    found: dict[Key, Floats] = {}
    for line in git(place, "for-each-ref", "--format=%(objectname) %(refname)", "refs/exps").splitlines():
        commit, name = line.split(" ", 1)
        if not name.rpartition("/")[2].startswith(f"{NAME}-"):
            continue
        own = yaml.safe_load(git(place, "show", f"{commit}:params.yaml"))["online"]["runs"]["grpo"]
        kl = own["kl"] if isinstance(own["kl"], str) else str(own["kl"]["beta"])
        if own["seed"] in seeds:
            files: Any = DVCFileSystem(str(place), rev=commit)
            with files.open("results/grpo/rollouts.parquet", "rb") as stream:
                rows = pq.read_table(io.BytesIO(stream.read()), columns=["prompt_id", "greedy", "reward"]).to_pylist()
            found[own["algorithm"], kl, own["seed"]] = _by_prompt(rows)
    return found


def _by_prompt(rows: Sequence[Mapping[str, Any]]) -> Floats:
    """Return the mean reward of the samples of each prompt, by prompt."""
    by_prompt: dict[str, list[float]] = {}
    for row in rows:
        if not row["greedy"]:
            by_prompt.setdefault(row["prompt_id"], []).append(row["reward"])
    return np.array([np.mean(by_prompt[prompt]) for prompt in sorted(by_prompt)])


def questions(found: Mapping[Key, Floats], seeds: Sequence[int]) -> dict[str, list[Floats]]:
    """Return the differences [other settings, seeds, prompts] of each question, then those of all pairs of levels."""
    kls = ("none", "0.04")

    def between(one: str, other: str) -> Floats:
        return np.array([[found[one, kl, seed] - found[other, kl, seed] for seed in seeds] for kl in kls])

    pairs = [between(b, a) for nth, a in enumerate(ALGORITHMS) for b in ALGORITHMS[nth + 1 :]]
    kl = np.array([[found[name, "0.04", s] - found[name, "none", s] for s in seeds] for name in ALGORITHMS])
    asked = {f"{name} minus grpo": [between(name, "grpo"), *pairs] for name in ALGORITHMS[1:]}
    return {**asked, "KL 0.04 minus none": [kl, kl]}


def answer(apart: Sequence[Floats], *, by_seed: bool) -> tuple[float, float, float]:
    """Return the difference, half its 95 % interval and p. `apart`: the question's, then those of all pairs of levels.

    by_seed: one value per seed, with the variance pooled over all pairs of levels (repeated measures) if it is larger.
    Else each pair of trainings counts as independent of the others.
    """
    own, *pairs = apart
    contexts, count, prompts = own.shape
    if by_seed:
        levels = round((1 + np.sqrt(1 + 8 * len(pairs))) / 2)
        pooled = np.mean([one.mean(axis=(0, 2)).var(ddof=1) for one in pairs]) / count
        mine = own.mean(axis=(0, 2)).var(ddof=1) / count
        variance, freedom = (pooled, (levels - 1) * (count - 1)) if pooled >= mine else (mine, count - 1)
    else:
        freedom = contexts * (count - 1)
        variance = own.mean(axis=2).var(axis=1, ddof=1).mean() / (contexts * count)
    rest = own - own.mean(axis=1, keepdims=True)
    rest = rest - rest.mean(axis=2, keepdims=True)
    cell = (rest**2).sum() / (contexts * (count - 1) * (prompts - 1)) / (contexts * count * prompts)
    of_prompts = max(0.0, own.mean(axis=(0, 1)).var(ddof=1) / prompts - cell)
    rng = np.random.default_rng(1)
    errors = np.sqrt(variance) * rng.standard_t(freedom, DRAWS) + np.sqrt(of_prompts) * rng.normal(size=DRAWS)
    mean = float(own.mean())
    return mean, float(np.quantile(np.abs(errors), 0.95)), float((np.abs(errors) >= abs(mean)).mean())


def holm(p: Sequence[float]) -> list[float]:
    """Return the corrected p, as Holm (1979) wrote it."""
    order = sorted(range(len(p)), key=lambda nth: p[nth])
    found, largest = [0.0] * len(p), 0.0
    for rank, nth in enumerate(order):
        largest = max(largest, min(1.0, p[nth] * (len(p) - rank)))
        found[nth] = largest
    return found


def report(asked: Mapping[str, Sequence[Floats]]) -> list[str]:
    """Return the answers of numpy alone as lines."""
    lines = []
    for by_seed in (False, True):
        found = {name: answer(apart, by_seed=by_seed) for name, apart in asked.items()}
        corrected = holm([p for *_, p in found.values()])
        lines.append("seeds are the replicates:" if by_seed else "each pair of trainings is a replicate:")
        lines += [
            f"  {name:20} {mean:+.3f} [{mean - half:+.3f}, {mean + half:+.3f}] uncorrected, p by Holm {p:.4f}"
            for (name, (mean, half, _)), p in zip(found.items(), corrected, strict=True)
        ]
    return lines


def main(arguments: list[str]) -> int:
    """Run what is missing and print both answers."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "python -m benchmarks.planned_questions", description=__doc__, formatter_class=formatter
    )
    parser.add_argument("--workspace", type=Path, default=ROOT / ".planned", help="where it trains and keeps results")
    parser.add_argument("--seeds", default="1,2,3", help="the seeds of each setting")
    options = parser.parse_args(arguments)
    place, seeds = options.workspace.resolve(), [int(seed) for seed in options.seeds.split(",")]
    prepare(place)
    os.nice(10)
    posttrain(place, "sweep", NAME, "--seeds", options.seeds, "--jobs", "1")
    print("\nposttrain compare, all seeds that have run:", flush=True)
    posttrain(
        place, "compare", NAME, "--policy", "grpo", "--factor", "algorithm", "--against", "grpo", "--factor", "kl"
    )
    print(f"\nnumpy alone, seeds {options.seeds}:")
    print("\n".join(report(questions(scores(place, seeds), seeds))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
