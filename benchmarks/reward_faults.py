"""What failures of a reward do to a run: GRPO with a reward that fails in several ways, left out or counted as 0.

python -m benchmarks.reward_faults            run what is missing in .reward-faults, then write docs/reward-faults.md
python -m benchmarks.reward_faults --table    write the page from the results that are there
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import ROOT
from benchmarks.learning import prepare, write_params
from benchmarks.learning_trials import scores_per_prompt
from benchmarks.machine import machine
from posttrain.compare.statistics import ALPHA, difference

PAGE = ROOT / "docs" / "reward-faults.md"
SEEDS = (1, 2, 3)
REWARD = '''
"""The rule `correct`, and what goes wrong with it: chosen by a hash of the completion, so a run can be repeated."""

import hashlib
import os
import time
from typing import Literal

from pydantic import Field

from posttrain.params import Params
from posttrain.rewards.numeric import NumericOptions, expected_number, final_number
from posttrain.rewards.reward import rule
from posttrain.rollout import Score


class Faults(Params):
    kind: Literal["none", "down", "slow", "crash", "zero"] = Field("none", description="what goes wrong")
    share: float = Field(0.0, description="with this share of completions")


@rule(Faults)
def right(rollout, options):
    text = f"{rollout.prompt.id}:{rollout.sample}:{rollout.text}"
    draw = int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) / 2**32
    if draw < options.share:
        if options.kind == "slow":
            time.sleep(60)
        if options.kind == "crash":
            os._exit(1)
        if options.kind == "down":
            return Score(0.0, "infrastructure", "the server is down")
        if options.kind == "zero":
            return 0.0
    numeric = NumericOptions(after="####")
    found = final_number(rollout.text, numeric)
    return float(found is not None and found == expected_number(rollout.prompt.answer, "####"))
'''
CASES: dict[str, dict[str, Any]] = {
    "no failures": {},
    "50 % without an answer of the server, left out": {"kind": "down", "share": 0.5},
    "50 % without an answer of the server, counted as 0": {"kind": "zero", "share": 0.5},
    "5 % hang and are killed after 0.5 s, left out": {"kind": "slow", "share": 0.05, "timeout": 0.5},
    "2 % crash their worker process, left out": {"kind": "crash", "share": 0.02},
}


def name_of(case: int, seed: int) -> str:
    """The run of a case and a seed."""
    return f"faults-{case}-{seed}"


def run_missing(place: Path) -> None:
    """Train and evaluate every case with every seed."""
    from stages import evaluate, online

    folder = place / "worker0"
    (folder / "custom").mkdir(exist_ok=True)
    (folder / "custom" / "faulty_server.py").write_text(REWARD, encoding="utf-8")
    os.environ["DVC_ROOT"] = str(folder)
    os.chdir(folder)
    for seed in SEEDS:
        for number, settings in enumerate(CASES.values()):
            run = name_of(number, seed)
            if (Path("results") / run / "metrics.json").is_file():
                continue
            reward = {"faulty_server:right": {"weight": 1.0, **settings}}
            trained = {
                "algorithm": "grpo",
                "start": "sft/main",
                "data": "two_step/prompts",
                "corpus": "none",
                "reward_model": "none",
                "reward": reward,
                "seed": seed,
                "max_failed": 1.0,
                "rollout": {"rounds": 25, "prompts": 8, "group_size": 8, "minibatches": 2},
                "optimizer": {"lr": 1e-3, "schedule": "linear"},
            }
            measured = {"data": "two_step/prompts", "reference": "sft/main", "reward_model": "none", "prompts": 120}
            evaluated = {"settings": {**measured, "samples": 8}, "policies": {run: f"online/{run}"}}
            write_params({"online": {"runs": {run: trained}}, "evaluate": evaluated})
            online.main(run)
            evaluate.main(run)


def page(place: Path) -> str:
    """The table of all cases."""
    results = place / "worker0" / "results"
    scores = [np.array([scores_per_prompt(results / name_of(i, seed)) for seed in SEEDS]) for i in range(len(CASES))]
    start = np.array([scores_per_prompt(place / "pipeline" / "results" / "sft")])
    lines = [
        "# Failures of a reward",
        "",
        "GRPO on the miniature's task with a reward that fails for some completions. Failed scores leave their group, its",
        "baseline and every denominator ([rewards.md](rewards.md#the-status-of-a-score)). For contrast one case counts them as 0.",
        "pass@1 on 120 test prompts with 8 samples, mean of seeds; the difference from the run without failures has a 95 %",
        "interval over prompts and seeds.",
        "",
        "| reward | pass@1 | difference from no failures |",
        "|---|---:|---:|",
        f"| (the start model) | {start.mean():.3f} | |",
    ]
    for label, found in zip(CASES, scores, strict=True):
        change = difference(found, scores[0])
        low, high = (change.mean + sign * change.half(ALPHA) for sign in (-1, 1))
        shown = f"{change.mean:+.3f} [{low:+.3f}, {high:+.3f}]" if found is not scores[0] else ""
        spread = ", ".join(f"{one:.3f}" for one in found.mean(axis=1))
        lines.append(f"| {label} | {statistics.fmean(found.mean(axis=1)):.3f} ({spread}) | {shown} |")
    return "\n".join([*lines, "", f"`python -m benchmarks.reward_faults`; {machine()}.", ""])


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reward_faults", description=__doc__)
    parser.add_argument("--workspace", type=Path, default=ROOT / ".reward-faults", help="where it trains")
    parser.add_argument("--table", action="store_true", help="only write the page")
    options = parser.parse_args(arguments)
    place: Path = options.workspace.resolve()
    if not options.table:
        place.mkdir(exist_ok=True)
        prepare(place)
        run_missing(place)
    PAGE.write_text(page(place), encoding="utf-8")
    print(f"written: {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
