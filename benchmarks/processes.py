"""Seconds of an optimizer step (SFT) by two processes of one thread, against one process with two threads.

python -m benchmarks.processes [--pairs 3] [--shapes S smollm2]     prints a table (docs/reports/studies.md)
"""

from __future__ import annotations

import stages  # noqa: F401  # first: it sets the instructions that torch may use

# isort: split

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from benchmarks.machine import machine

WARM, STEPS = 1, 3
WORK = {"T": (64, 128, 2048), "S": (16, 512, 2048), "smollm2": (2, 512, 512)}
"""Shape -> rows of a step, tokens of a row, tokens of a micro-batch."""


def start_model(shape: str) -> Callable[..., Any]:
    """Return what makes a model of the shape with random weights."""
    from posttrain.models.files.loading import prepared

    if shape == "smollm2":
        from benchmarks.decoding import model_of_smollm2

        return lambda *, scores=False, empty=False: _as(prepared(model_of_smollm2()), empty=empty)  # noqa: ARG005
    from benchmarks.speed.case import SHAPES, language_model

    return lambda *, scores=False, empty=False: _as(prepared(language_model(SHAPES[shape])), empty=empty)  # noqa: ARG005


def _as(model: Any, *, empty: bool) -> Any:
    if empty:
        model.to("meta").tie_weights()
    return model


def measure(rank: int, size: int, meeting: str, shape: str, *, threads: int, steps: int = STEPS) -> float:
    """Return the median seconds of a step of this process and the others."""
    import torch

    from posttrain.algorithms.supervised import LikelihoodConfig, LikelihoodObjective
    from posttrain.distributed import world
    from posttrain.models.device import DeviceParams, Runtime
    from posttrain.models.sharding import mesh_of
    from posttrain.rollout import TokenRow
    from posttrain.train.batch_sources import Example, collate
    from posttrain.train.model_set import ModelSet
    from posttrain.train.optimizer import AdamW, OptimizerParams
    from posttrain.train.step import StepClosure

    runtime = Runtime(DeviceParams(device="cpu", precision="fp32", threads=threads))
    if size > 1:
        world.connect(rank, size, meeting)
    rows, length, micro_tokens = WORK[shape]
    objective = LikelihoodObjective(LikelihoodConfig())
    mesh = mesh_of(runtime.device, None) if size > 1 else None
    models = ModelSet.of(start_model(shape), runtime, objective.needs, None, reference_moves=False, mesh=mesh)
    object.__setattr__(models, "micro_tokens", micro_tokens)
    update = AdamW({"policy": (models.policy, 1e-4)}, OptimizerParams(), WARM + steps)
    draw, vocabulary = torch.Generator().manual_seed(0), models.policy.config.vocab_size
    seconds = []
    for _ in range(WARM + steps):
        ids = torch.randint(2, vocabulary, (rows, length), generator=draw).tolist()
        batch = collate([Example([TokenRow(row[:1], row[1:])]) for row in ids])
        prepared = objective.prepare(batch.columns, {})
        models.policy.train()
        begin = time.perf_counter()
        update.step(StepClosure(objective, models, batch.with_prepared(prepared.step)), 0.0)
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds[WARM:])


def run(size: int, shape: str) -> float:
    """Return the seconds of a step by so many processes."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.processes", "--process"]
        environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": str(2 // size)}
        started = [
            subprocess.Popen(
                [*command, str(rank), str(size), f"file://{folder}/meeting", shape],
                env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            )
            for rank in range(size)
        ]  # fmt: skip
        printed = [process.communicate()[0] for process in started]
    return max(float(text.split()[-1]) for text in printed)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.processes", description=__doc__)
    parser.add_argument("--pairs", type=int, default=3, help="alternations")
    parser.add_argument("--shapes", nargs="+", default=["S", "smollm2"], choices=list(WORK))
    parser.add_argument("--process", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.process:
        rank, size, meeting, shape = arguments.process
        print(measure(int(rank), int(size), meeting, shape, threads=2 // int(size)))
        return
    print(f"{machine()}: seconds of a step, median of {arguments.pairs} pairs\n")
    print("| shape | 1 process, 2 threads | 2 processes, 1 thread | ratio (least, most) |\n| --- | --- | --- | --- |")
    for shape in arguments.shapes:
        pairs = [(run(1, shape), run(2, shape)) for _ in range(arguments.pairs)]
        ratios = [one / two for one, two in pairs]
        one, two = (statistics.median(side) for side in zip(*pairs, strict=True))
        ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}, {max(ratios):.2f})"
        print(f"| {shape} | {one:.2f} | {two:.2f} | {ratio} |", flush=True)


if __name__ == "__main__":
    main()
