"""A run of one process: it is the first, and alone."""

from __future__ import annotations

import torch

from posttrain.distributed import world


def test_one_process() -> None:
    assert (world.rank(), world.count(), world.is_rank_zero()) == (0, 1, True)
    part = torch.tensor([1, 2])
    assert world.gathered({"a": 1}) == [{"a": 1}] and world.from_first(lambda: 3) == 3
    assert [one.tolist() for one in world.gathered_tensors(part)] == [[1, 2]] and world.added(part) is part
    world.add_up([part])
    world.wait_for_all()
    world.shutdown()
    assert part.tolist() == [1, 2]
