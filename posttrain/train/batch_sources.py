"""Batch sources: the batches of a run.

Sources over examples use each example once per epoch, in an order set by the seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from posttrain.models.sharding import fill
from posttrain.rollout import TokenRow
from posttrain.train.model_set import ModelSet
from posttrain.train.step import Batch, make_batch


class BatchSource(Protocol):
    """The batches of a run, one per optimizer step.

    Example: `EpochSource([Example([TokenRow([5, 6], [7])])], batch_size=1, epochs=2, seed=0).batch(0)`
    """

    @property
    def steps(self) -> int:
        """Optimizer steps of the whole run."""
        ...

    def batch(self, step: int) -> Batch:
        """Return the rows of one optimizer step."""
        ...

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the last batch."""
        return {}

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state that a checkpoint needs to resume; empty if the batch depends only on the step."""
        return {}

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Restore the state from `state_dict`."""
        if tensors:
            raise ValueError(f"this source has no state, so {sorted(tensors)} belong to another source")


class WrappedSource(BatchSource):
    """A wrapper of another source, which holds all state."""

    def __init__(self, inner: BatchSource) -> None:
        self._inner = inner

    @property
    def steps(self) -> int:
        """Optimizer steps of the whole run."""
        return self._inner.steps

    def batch(self, step: int) -> Batch:
        """Return the rows of the inner source."""
        return self._inner.batch(step)

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the inner source."""
        return self._inner.metrics()

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state of the inner source."""
        return self._inner.state_dict()

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Restore the state from `state_dict`."""
        self._inner.load_state_dict(tensors)


@dataclass(frozen=True)
class Example:
    """Rows that belong together (an answer, or the answers of a comparison). Each column has a value per row."""

    rows: Sequence[TokenRow]
    columns: dict[str, Sequence[float]] = field(default_factory=dict)


class EpochSource(BatchSource):
    """Batches from a list of examples. The last batch of an epoch may be smaller."""

    def __init__(self, examples: Sequence[Example], batch_size: int, epochs: float, seed: int) -> None:
        self.examples, self.batch_size, self._seed = examples, batch_size, seed
        self._steps = max(round(-(-len(examples) // batch_size) * epochs), 1)

    @property
    def steps(self) -> int:
        """Optimizer steps of the whole run."""
        return self._steps

    def batch(self, step: int) -> Batch:
        """Return the examples of one step."""
        return collate([self.examples[i] for i in epoch_places(len(self.examples), self.batch_size, step, self._seed)])


def epoch_places(count: int, batch_size: int, step: int, seed: int) -> list[int]:
    """Return the indices of one step's examples: each of `count` once per epoch, in an order set by the seed."""
    epoch, place = divmod(step, -(-count // batch_size))
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch))
    return [int(example) for example in order[place * batch_size : (place + 1) * batch_size].tolist()]


class StepSource(EpochSource):
    """An epoch source with exactly this many steps."""

    def __init__(self, examples: Sequence[Example], batch_size: int, steps: int, seed: int) -> None:
        super().__init__(examples, batch_size, 1, seed)
        self._steps = steps


class KtoSource(EpochSource):
    """Feedback rows. Each batch also pairs its prompts with other prompts' answers (label 0) to estimate the KL."""

    def batch(self, step: int) -> Batch:
        """Return the rows of one step and the same number of mismatched rows."""
        batch = super().batch(step)
        count = len(batch)
        labels = torch.cat([batch.columns.rows["label"], torch.zeros(count if count > 1 else 0)])
        others = [replace(batch.rows[(i + 1) % count], prompt=batch.rows[i].prompt) for i in range(count)]
        return make_batch([*batch.rows, *(others if count > 1 else [])], {"label": labels})


class ChunkedSource(BatchSource):
    """The data in successive parts. Each part's reference is the policy at its start (sDPO, Kim 2024)."""

    def __init__(
        self,
        examples: Sequence[Example],
        batch_size: int,
        epochs: float,
        seed: int,
        *,
        parts: int,
        models: ModelSet,
        source: type[EpochSource] = EpochSource,
    ) -> None:
        """`source`: the class of each part."""
        if parts > len(examples):
            raise ValueError(f"{len(examples)} examples cannot be cut into {parts} parts")
        order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(seed)).tensor_split(parts)
        self._parts = [source(_Subset(examples, part.tolist()), batch_size, epochs, seed) for part in order]
        self._models = models

    @property
    def steps(self) -> int:
        """Optimizer steps of the whole run."""
        return sum(part.steps for part in self._parts)

    def batch(self, step: int) -> Batch:
        """Return the examples of one step. The first step of a later part copies the policy to the reference."""
        place = step
        for part in self._parts:
            if place < part.steps:
                if place == 0 and step:
                    self._models.copy_policy(self._models.reference)
                return part.batch(place)
            place -= part.steps
        raise IndexError(f"there is no step {step}")

    def state_dict(self) -> dict[str, Tensor]:
        """Return the reference of the current part."""
        return dict(self._models.own_parameters(self._models.reference))

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Restore the reference of the current part."""
        with torch.no_grad():
            for name, parameter in self._models.own_parameters(self._models.reference).items():
                fill(parameter, tensors[name])


@dataclass(frozen=True)
class _Subset(Sequence[Example]):
    """Some of the examples. They are read only when a batch needs them."""

    examples: Sequence[Example]
    numbers: list[int]

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: Any) -> Any:
        return self.examples[self.numbers[index]]


def collate(examples: Sequence[Example]) -> Batch:
    """Return examples as one batch. The rows of an example share an item number."""
    rows = [row for example in examples for row in example.rows]
    names = examples[0].columns if examples else {}
    columns = {name: torch.tensor([float(v) for example in examples for v in example.columns[name]]) for name in names}
    sizes = torch.tensor([len(example.rows) for example in examples])
    numbers = torch.repeat_interleave(torch.arange(len(examples)), sizes)
    return make_batch(rows, columns, items=numbers)


def prefixed(**parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Join several parts of a state: `prefixed(update={"step": x})` -> {"update.step": x}."""
    return {f"{part}.{name}": tensor for part, tensors in parts.items() for name, tensor in tensors.items()}


def under(tensors: Mapping[str, Tensor], part: str) -> dict[str, Tensor]:
    """Return one part of a state from `prefixed`."""
    start = f"{part}."
    return {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}
