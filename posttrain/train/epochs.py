"""Batches from given rows: every item once an epoch, in an order that the seed and the epoch decide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from posttrain.text.layout import TokenRow
from posttrain.train.batch import Batch, make_batch
from posttrain.train.model_set import ModelSet


@dataclass(frozen=True)
class Item:
    """Rows that belong together (one answer, or the answers of a comparison), with a value per row for each column."""

    rows: Sequence[TokenRow]
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
        others = [replace(batch.rows[(i + 1) % count], prompt=batch.rows[i].prompt) for i in range(count)]
        return make_batch([*batch.rows, *(others if count > 1 else [])], {"label": labels})


class PartedEpochs:
    """The data in parts, one after the other; each part's reference is the policy before it (sDPO, Kim 2024)."""

    def __init__(
        self, items: Sequence[Item], batch_size: int, epochs: float, seed: int, *, parts: int, models: ModelSet
    ) -> None:
        if parts > len(items):
            raise ValueError(f"{len(items)} items cannot be cut into {parts} parts")
        order = torch.randperm(len(items), generator=torch.Generator().manual_seed(seed)).tensor_split(parts)
        self._parts = [Epochs([items[i] for i in part.tolist()], batch_size, epochs, seed) for part in order]
        self._models = models

    @property
    def steps(self) -> int:
        """Optimizer steps in the whole run."""
        return sum(part.steps for part in self._parts)

    def batch(self, step: int) -> Batch:
        """The items of one step; the first step of a part renews the reference."""
        place = step
        for part in self._parts:
            if place < part.steps:
                if place == 0:
                    self._models.copy_policy(self._models.reference)
                return part.batch(place)
            place -= part.steps
        raise IndexError(f"there is no step {step}")

    def seen(self) -> dict[str, float]:
        """Nothing beyond what the objective sees."""
        return {}

    def tensors(self) -> dict[str, Tensor]:
        """The reference of the part in hand."""
        reference: Any = self._models.reference
        return dict(reference.named_parameters())

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Take up the reference of the part in hand."""
        reference: Any = self._models.reference
        with torch.no_grad():
            for name, parameter in reference.named_parameters():
                parameter.copy_(tensors[name])


def stack(items: Sequence[Item]) -> Batch:
    """Items as one batch; their rows share an item number."""
    rows = [row for item in items for row in item.rows]
    names = items[0].columns if items else {}
    columns = {name: torch.tensor([float(v) for item in items for v in item.columns[name]]) for name in names}
    sizes = torch.tensor([len(item.rows) for item in items])
    numbers = torch.repeat_interleave(torch.arange(len(items)), sizes)
    return make_batch(rows, columns, items=numbers)
