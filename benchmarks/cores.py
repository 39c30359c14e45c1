"""Training speed of one process with many threads compared with many processes of one thread.

Processes would have to exchange their gradients in addition, which is not counted.

python -m benchmarks.cores               a model of SmolLM2-135M's shape; prints a table (docs/reports/real.md)
"""

from __future__ import annotations

import stages  # noqa: F401  # first: it sets the instructions that torch may use

# isort: split

import argparse
import multiprocessing
import os
import statistics
import time
from typing import Any

from benchmarks.machine import machine

TOKENS, STEPS = 512, 4
"""Of a row, and training steps of a measurement after the one that warms up."""


def train(threads: int, results: Any) -> None:
    """Forward and backward passes of one row at a time; puts the tokens per second."""
    import torch

    from benchmarks.decoding import model_of_smollm2

    torch.set_num_threads(threads)
    model = model_of_smollm2()
    ids = torch.randint(model.config.vocab_size, (1, TOKENS), generator=torch.Generator().manual_seed(0))
    model(ids, labels=ids).loss.backward()
    start = time.perf_counter()
    for _ in range(STEPS):
        model.zero_grad()
        model(ids, labels=ids).loss.backward()
    results.put(STEPS * TOKENS / (time.perf_counter() - start))


def rate(processes: int, threads: int) -> float:
    """Tokens per second of all processes together, which run at the same time."""
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    started = [context.Process(target=train, args=(threads, results)) for _ in range(processes)]
    for one in started:
        one.start()
    found = sum(results.get() for _ in started)
    for one in started:
        one.join()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cores", description=__doc__)
    parser.add_argument("-n", "--rounds", type=int, default=3, help="alternations")
    rounds = parser.parse_args().rounds
    cores = os.cpu_count() or 1
    sides = {f"1 process, {cores} threads": (1, cores), f"{cores} processes, 1 thread each": (cores, 1)}
    found: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, (processes, threads) in sides.items():
            found[name].append(rate(processes, threads))
    print("| | training tokens per second, median [lowest, highest] |\n|---|---:|")
    for name, rates in found.items():
        print(f"| {name} | {statistics.median(rates):.0f} [{min(rates):.0f}, {max(rates):.0f}] |")
    print(f"\nfloat32, rows of {TOKENS} tokens, {rounds} alternations; {machine()}.")


if __name__ == "__main__":
    main()
