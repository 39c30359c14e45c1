"""Compute something for the rows of a batch in all processes of a run, and give every process all results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from posttrain.distributed import world

if TYPE_CHECKING:
    from posttrain.train.model_set import ModelSet
    from posttrain.train.step import Batch


def by_all(
    models: ModelSet, batch: Batch, function: Callable[[Batch], Sequence[Tensor]], sizes: Sequence[int]
) -> list[Tensor]:
    """Return the function's tensors for the whole batch, in the order of its rows, in host memory.

    `sizes`: how many entries of each tensor belong to each row.
    """
    parts = [(function(micro), counts) for micro, counts in models.own_micro_batches(batch)]
    computed = [[part[: None if counts else 0] for part in tensors] for tensors, counts in parts]
    rounds = models.shared_out(batch)
    order = [row for process in range(world.count()) for dealt in rounds for row in dealt[process]]
    return [_in_order(torch.cat(column), order, sizes) for column in zip(*computed, strict=True)]


def first_of_items(batch: Batch) -> list[int]:
    """Return 1 for the first row of each item and 0 for other rows: the sizes of a result with one value per item."""
    items = batch.columns.items.tolist()
    return [int(i == 0 or item != items[i - 1]) for i, item in enumerate(items)]


def _in_order(local: Tensor, order: Sequence[int], sizes: Sequence[int]) -> Tensor:
    """Return all processes' entries of a column in the order of the rows."""
    every = torch.cat(world.gathered_tensors(local.detach().cpu().flatten())).view(-1, *local.shape[1:])
    entry_of = dict(zip(order, torch.split(every, [sizes[row] for row in order]), strict=True))
    return torch.cat([entry_of[row] for row in range(len(sizes))])
