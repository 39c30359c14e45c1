"""What storing the rollouts of a run costs: the same rounds with and without it, in turns, in one process.

python -m benchmarks.rollouts            in a workspace whose pipeline has run; prints a table (docs/reports/studies.md)
"""

from __future__ import annotations

import stages  # noqa: F401  # first: it sets the instructions that torch may use

# isort: split

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Literal

from benchmarks.machine import machine
from posttrain.pipeline.params.named_runs import load_run
from posttrain.pipeline.runs.online import ONLINE, online_run
from posttrain.pipeline.runs.stage_checkpoints import Checkpoints
from posttrain.pipeline.runs.training import RunInputs
from posttrain.train import randomness
from posttrain.train.loop import training_loop
from posttrain.train.metrics import CsvRecorder

Side = Literal["without", "with"]


def seconds(run: str, side: Side, rounds: int, place: Path) -> tuple[float, float]:
    """CPU and wall seconds of the first rounds, checkpoints and the final table included."""
    os.environ["DVC_ROOT"] = str(place)
    params = load_run(f"online.runs.{run}", ONLINE)
    given = online_run(RunInputs(f"online@{run}", params))
    longest = max(len(prompt.ids) for prompt in given.prompts)
    log = params.rollout_log(given.name, given.text, longest) if side == "with" else None
    checkpoints = Checkpoints(given.name, {}, [])
    with given.sampler() as sampler:
        rewards = given.rewards()
        rewards.load(given.prompts)
        training = given.training(given.groups(sampler), rewards, params.monitor(given.section), log)
        if log is not None:
            log.open(checkpoints.folder)
        randomness.seed(params.seed)
        end = rounds * params.rollout.minibatches * params.rollout.epochs
        cpu, wall = time.process_time(), time.perf_counter()
        steps = training_loop(training, checkpoints, CsvRecorder(place / "plot.csv"), end).rows
    if log is not None:
        log.finish(place / "rollouts", steps)
    return time.process_time() - cpu, time.perf_counter() - wall


def main() -> None:
    """Print the medians of both sides and what the rollouts add."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", default="grpo", help="a run of online.runs; default: grpo")
    parser.add_argument("--rounds", type=int, default=25, help="rounds of each side and pair; default: 25")
    parser.add_argument("--pairs", type=int, default=7, help="pairs of both sides; default: 7")
    arguments = parser.parse_args()
    found: dict[Side, list[tuple[float, float]]] = {"without": [], "with": []}
    for nth in range(arguments.pairs + 1):
        for side in ("without", "with") if nth % 2 else ("with", "without"):
            with tempfile.TemporaryDirectory() as scratch:
                one = seconds(arguments.run, side, arguments.rounds, Path(scratch))
            if nth:  # the first pair warms up
                found[side].append(one)
    print(f"{machine()}\n\n| ms per round | without | with | ratio of each pair |\n| --- | ---: | ---: | --- |")
    for place, name in enumerate(("CPU", "wall")):
        without, stored = ([one[place] for one in found[side]] for side in ("without", "with"))
        medians = [1000 * statistics.median(values) / arguments.rounds for values in (without, stored)]
        ratios = [b / a for a, b in zip(without, stored, strict=True)]
        spread = f"{statistics.median(ratios):.3f} [{min(ratios):.3f}, {max(ratios):.3f}]"
        print(f"| {name} | {medians[0]:.1f} | {medians[1]:.1f} | {spread} |")


if __name__ == "__main__":
    main()
