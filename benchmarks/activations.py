"""What each way to keep activations takes: bytes that wait for the backward pass, and CPU seconds of a pass both ways.

python -m benchmarks.activations [--shape S] [--turns 5]     prints a table (docs/reports/memory.md)

One process with one thread runs the ways in turn, four rows of 256 tokens, in float32 with random weights.
"""

from __future__ import annotations

import stages  # noqa: F401  # first: it sets the instructions that torch may use

# isort: split

import argparse
import statistics
import time
from typing import Any

import torch

from benchmarks.machine import machine
from benchmarks.processes import start_model
from posttrain.models.forward.activations import Activations, set_activations
from posttrain.models.forward.forward import packed_states
from posttrain.rollout import token_rows
from posttrain.text.packing import pack
from tests.pipeline.train.live import LiveBytes

WAYS: tuple[Activations, ...] = ("keep", "selective", "recompute")


def kept(model: Any, packed: Any) -> int:
    """Return the bytes that a forward pass leaves."""
    with LiveBytes([*model.parameters(), *model.buffers()]) as live:
        before = live.now
        states = packed_states(model, packed)
        found = live.now - before
        del states
    return found


def seconds(model: Any, packed: Any) -> float:
    """Return the CPU seconds of a pass both ways."""
    start = time.process_time()
    packed_states(model, packed).float().sum().backward()
    model.zero_grad()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.activations", description=__doc__)
    parser.add_argument("--shape", default="S", choices=["T", "S", "smollm2"])
    parser.add_argument("--turns", type=int, default=5)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    model, packed = start_model(asked.shape)().train(), pack(token_rows([[1]] * 4, [[2] * 255] * 4))
    memory: dict[str, int] = {}
    spent: dict[str, list[float]] = {way: [] for way in WAYS}
    for turn in range(asked.turns + 1):
        for way in WAYS:
            set_activations(model, way)
            memory[way] = memory.get(way) or kept(model, packed)
            found = seconds(model, packed)
            if turn:  # the first one warms up
                spent[way].append(found)
    print(f"{machine()}, shape {asked.shape}: {asked.turns} turns\n")
    print("| activations | kept | of keep | time, of keep (least, most) |\n| --- | ---: | ---: | --- |")
    for way in WAYS:
        ratios = [one / other for one, other in zip(spent[way], spent["keep"], strict=True)]
        span = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}, {max(ratios):.2f})"
        print(f"| {way} | {memory[way] / 1e6:.0f} MB | {memory[way] / memory['keep']:.2f} | {span} |")


if __name__ == "__main__":
    main()
