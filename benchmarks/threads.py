"""Speed of two CPU threads compared with one, by how long a waiting thread spins, on an idle and on a busy machine.

python -m benchmarks.threads [--pairs 3] [--shapes T]     prints a table (docs/reports/studies.md)
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from benchmarks.machine import machine
from benchmarks.processes import WORK, measure

STEPS: Final = 6
WAITS: Final = {
    "stages (1,000 turns)": {},
    "no spinning": {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0"},
    "libgomp's default (300,000 turns)": {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "300000"},
}
"""The environment variables that set how a thread waits. Without any, the stages set theirs."""
VARIABLES: Final = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OMP_NUM_THREADS")


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keep other processes busy, each on one core."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def seconds(shape: str, threads: int, variables: dict[str, str]) -> float:
    """Return the seconds of a step in a fresh process."""
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES} | variables
    command = [sys.executable, "-m", "benchmarks.threads", "--process", shape, str(threads)]
    printed = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    return float(printed.split()[-1])


def speed(shape: str, wait: str, pairs: int) -> str:
    """Return how many times as fast two threads are: the median of the pairs and their range."""
    ratios = []
    for _ in range(pairs):
        one = seconds(shape, 1, {})
        ratios.append(one / seconds(shape, 2, WAITS[wait]))
    return f"{statistics.median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]"


def main() -> None:
    """Print a row for each shape and way of waiting."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.threads", description=__doc__)
    parser.add_argument("--pairs", type=int, default=3, help="alternations")
    parser.add_argument("--shapes", nargs="+", default=["T"], choices=list(WORK))
    parser.add_argument("--process", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.process:
        shape, threads = arguments.process
        print(measure(0, 1, "", shape, threads=int(threads), steps=STEPS))
        return
    print(f"{machine()}: speed of two threads relative to one, median of {arguments.pairs} pairs [least, most]\n")
    print("| shape | waiting threads | idle machine | one other busy process |\n|---|---|---:|---:|")
    for shape in arguments.shapes:
        for wait in WAITS:
            cells = []
            for others in (0, 1):
                with busy(others):
                    cells.append(speed(shape, wait, arguments.pairs))
            print(f"| {shape} | {wait} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
