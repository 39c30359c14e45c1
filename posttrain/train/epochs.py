"""Batches from given rows: every item once an epoch, in an order that the seed and the epoch decide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from posttrain.text.layout import Ids
from posttrain.train.batch import Batch, make_batch


@dataclass(frozen=True)
class Item:
    """Rows that belong together (one answer, or the answers of a comparison), with a value per row for each column."""

    prompts: Sequence[Ids]
    completions: Sequence[Ids]
    columns: dict[str, Sequence[float]] = field(default_factory=dict)


class Epochs:
    """A source over a list of items; the last batch of an epoch may be smaller."""

    def __init__(self, items: Sequence[Item], batch_size: int, epochs: float, seed: int) -> None:
        self._items, self._size, self._seed = items, batch_size, seed
        self._per_epoch = -(-len(items) // batch_size)
        self._steps = max(round(self._per_epoch * epochs), 1)

    @property
    def steps(self) -> int:
        """Optimizer steps in the whole run."""
        return self._steps

    def batch(self, step: int) -> Batch:
        """The items of one step."""
        epoch, place = divmod(step, self._per_epoch)
        order = torch.randperm(
            len(self._items), generator=torch.Generator().manual_seed(self._seed * 1_000_003 + epoch)
        )
        chosen = [self._items[i] for i in order[place * self._size : (place + 1) * self._size].tolist()]
        return stack(chosen)

    def seen(self) -> dict[str, float]:
        """Nothing beyond what the objective sees."""
        return {}

    def tensors(self) -> dict[str, Tensor]:
        """Nothing: the step alone decides the batch."""
        return {}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Nothing to take up."""


class UnpairedEpochs(Epochs):
    """Feedback rows, each batch with its prompts answered by their neighbours' answers (label 0) to estimate KL."""

    def batch(self, step: int) -> Batch:
        """The rows of one step and as many mismatched ones."""
        batch = super().batch(step)
        count = len(batch)
        labels = torch.cat([batch.columns.rows["label"], torch.zeros(count if count > 1 else 0)])
        others = [batch.completions[(i + 1) % count] for i in range(count)] if count > 1 else []
        prompts = [*batch.prompts, *(batch.prompts if count > 1 else [])]
        return make_batch(prompts, [*batch.completions, *others], {"label": labels})


def stack(items: Sequence[Item]) -> Batch:
    """Items as one batch; their rows share an item number."""
    prompts = [ids for item in items for ids in item.prompts]
    completions = [ids for item in items for ids in item.completions]
    names = items[0].columns if items else {}
    columns = {name: torch.tensor([float(v) for item in items for v in item.columns[name]]) for name in names}
    sizes = torch.tensor([len(item.prompts) for item in items])
    numbers = torch.repeat_interleave(torch.arange(len(items)), sizes)
    return make_batch(prompts, completions, columns, items=numbers)
