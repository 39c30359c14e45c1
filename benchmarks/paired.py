"""Is this checkout as fast as another one? `make bench`'s own workloads in both, in turn, each in a fresh process.

    python -m benchmarks.paired ../old [--case sft/T dpo/T ...] [-n 3]

The other checkout needs an environment of its own (`make env` there).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks import ROOT
from benchmarks.machine import run_pinned
from benchmarks.speed.cases import COMPARED, TINY
from benchmarks.speed.meter import Report


def rate(checkout: Path, python: str, case: str) -> float:
    """Units per CPU second of our side in a checkout, on one core: a busy machine changes it little."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = run_pinned([python, "-m", "benchmarks.speed.side", case, "posttrain"], checkout, environment)
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        raise subprocess.SubprocessError(f"{checkout}: {case} failed:\n{done.stderr[-2000:]}")
    return Report(**json.loads(lines[-1])).user_rate


def main() -> None:
    """Print the ratio of each pair, and the median of each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path)
    parser.add_argument(
        "--case", nargs="+", choices=[*COMPARED, *TINY], default=["sft/T", "reward/T", "dpo/T", "grpo/T"]
    )
    parser.add_argument("-n", "--pairs", type=int, default=3)
    given = parser.parse_args()
    other = given.other.resolve()
    for case in given.case:
        ratios = []
        for turn in range(given.pairs):
            sides = [(ROOT, sys.executable), (other, str(other / ".venv/bin/python"))]
            found = {place: rate(place, python, case) for place, python in (sides if turn % 2 else sides[::-1])}
            ratios.append(found[ROOT] / found[other])
            print(f"{case}: {found[ROOT]:.2f}/s here, {found[other]:.2f}/s there: {ratios[-1]:.3f}", flush=True)
        print(f"{case}: {statistics.median(ratios):.3f} times as fast as {given.other} (median of {len(ratios)} pairs)")


if __name__ == "__main__":
    main()
