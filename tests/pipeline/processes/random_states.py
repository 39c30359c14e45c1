"""Random numbers of several processes, saved and restored.

python -m tests.pipeline.processes.random_states RANK SIZE MEETING
"""

from __future__ import annotations

import sys

import torch

from posttrain.distributed import world
from posttrain.train import randomness


def main() -> None:
    rank, size, meeting = sys.argv[1:]
    world.connect(int(rank), int(size), meeting)
    randomness.seed(0)
    torch.rand(1 + int(rank))  # as after micro-batches of different rows
    saved = randomness.states(torch.device("cpu"))
    expected = torch.rand(3).tolist()
    torch.rand(5)
    randomness.restore(saved, torch.device("cpu"))
    assert torch.rand(3).tolist() == expected
    assert len({tuple(numbers) for numbers in world.gathered(expected)}) == int(size)
    world.wait_for_all()
