"""Part F: steps of 8 billion weights, of one long row, and of a long row packed with short ones."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import partial

from benchmarks.gpu_parts.figures import Figures, Judge, Result, predicted
from benchmarks.gpu_parts.sizes import Device, Sizes
from benchmarks.gpu_parts.training import Job, switched, timed
from benchmarks.speed import ours


def run(figures: Figures, device: Device, sizes: Sizes) -> None:
    """Measure pairs of steps: determinism, recomputed layers, attention."""
    del device
    pack = Job(replace(sizes.sft, warm=1, updates=2), rows=sizes.tail)
    lora = Job(sizes.lora, lora=True, training=ours.RECOMPUTED)
    long = Job(sizes.long, training=ours.RECOMPUTED)
    _pair(
        figures, "a long row with short ones", ("deterministic", pack), ("free", replace(pack, deterministic=False)),
        predicted("speed", 2.2, "the cliff is there", "another cliff than verdict 1 says", within=0.3), (),
    )  # fmt: skip
    _pair(
        figures, "8B with LoRA", ("recomputed", lora), ("kept", replace(lora, training=ours.TRAINING)),
        predicted("speed", 1.3, "recomputing costs a forward pass", "recomputing costs something else", within=0.15),
        None,
    )  # fmt: skip
    _pair(
        figures, "one long row", ("FlashAttention 2", long), ("newest attention", long),
        predicted("speed", 2.0, "attention is most of it", "attention is not most of it", within=0.3),
        ("newest attention",),
    )  # fmt: skip


def _pair(
    figures: Figures, name: str, first: tuple[str, Job], second: tuple[str, Job], judge: Judge,
    on: tuple[str, ...] | None,
) -> None:  # fmt: skip
    """Take both, the second as a multiple of the first's speed.

    `on`: what is switched on for the second. None: the library chooses for both.
    """
    base = figures.take(f"{name}, {first[0]}", partial(_measured, first[1], None if on is None else ()))

    def measure() -> Result:
        found = _measured(second[1], on)
        return {**found, "speed": (base or found)["ms"] / found["ms"]}

    if base:
        figures.take(f"{name}, {second[0]}", measure, judge)


def _measured(job: Job, on: tuple[str, ...] | None) -> Result:
    with nullcontext() if on is None else switched(*on):
        return timed(job)
