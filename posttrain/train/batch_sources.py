"""Where the batches of a run come from; those of given rows: every example once an epoch, in an order by the seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from posttrain.rollout import TokenRow
from posttrain.train.model_set import ModelSet
from posttrain.train.step import Batch, make_batch


class BatchSource(Protocol):
    """Where the batches of a run come from."""

    @property
    def steps(self) -> int:
        """Optimizer steps in the whole run."""
        ...

    def batch(self, step: int) -> Batch:
        """The rows of one optimizer step."""
        ...

    def metrics(self) -> dict[str, float]:
        """Numbers about the last batch that are worth a column."""
        return {}

    def state_dict(self) -> dict[str, Tensor]:
        """What must be kept to resume from here; nothing where the step alone decides the batch."""
        return {}

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Resume from what `state_dict` gave."""
        if tensors:
            raise ValueError(f"this source keeps nothing, so {sorted(tensors)} are of another one")


class WrappedSource(BatchSource):
    """A source around another one, which keeps all there is to keep."""

    def __init__(self, inner: BatchSource) -> None:
        self._inner = inner

    @property
    def steps(self) -> int:
        """Optimizer steps in the whole run."""
        return self._inner.steps

    def batch(self, step: int) -> Batch:
        """The rows of the inner source."""
        return self._inner.batch(step)

    def metrics(self) -> dict[str, float]:
        """What the inner source has seen."""
        return self._inner.metrics()

    def state_dict(self) -> dict[str, Tensor]:
        """What the inner source keeps."""
        return self._inner.state_dict()

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Resume from what `state_dict` gave."""
        self._inner.load_state_dict(tensors)


@dataclass(frozen=True)
class Example:
    """Rows that belong together (one answer, or the answers of a comparison), with a value per row for each column."""

    rows: Sequence[TokenRow]
    columns: dict[str, Sequence[float]] = field(default_factory=dict)


class EpochSource(BatchSource):
    """A source over a list of examples; the last batch of an epoch may be smaller."""

    def __init__(self, examples: Sequence[Example], batch_size: int, epochs: float, seed: int) -> None:
        self.examples, self.batch_size, self._seed = examples, batch_size, seed
        self._per_epoch = -(-len(examples) // batch_size)
        self._steps = max(round(self._per_epoch * epochs), 1)

    @property
    def steps(self) -> int:
        """Optimizer steps in the whole run."""
        return self._steps

    def batch(self, step: int) -> Batch:
        """The examples of one step."""
        epoch, place = divmod(step, self._per_epoch)
        order = torch.randperm(
            len(self.examples), generator=torch.Generator().manual_seed(self._seed * 1_000_003 + epoch)
        )
        chosen = order[place * self.batch_size : (place + 1) * self.batch_size].tolist()
        return stack([self.examples[i] for i in chosen])


class StepSource(EpochSource):
    """As many epochs as it takes to make exactly so many steps."""

    def __init__(self, examples: Sequence[Example], batch_size: int, steps: int, seed: int) -> None:
        super().__init__(examples, batch_size, 1, seed)
        self._steps = steps


class KtoSource(EpochSource):
    """Feedback rows, each batch with its prompts answered by their neighbours' answers (label 0) to estimate KL."""

    def batch(self, step: int) -> Batch:
        """The rows of one step and as many mismatched ones."""
        batch = super().batch(step)
        count = len(batch)
        labels = torch.cat([batch.columns.rows["label"], torch.zeros(count if count > 1 else 0)])
        others = [replace(batch.rows[(i + 1) % count], prompt=batch.rows[i].prompt) for i in range(count)]
        return make_batch([*batch.rows, *(others if count > 1 else [])], {"label": labels})


class ChunkedSource(BatchSource):
    """The data in parts, one after the other; each part's reference is the policy before it (sDPO, Kim 2024)."""

    def __init__(
        self, examples: Sequence[Example], batch_size: int, epochs: float, seed: int, *, parts: int, models: ModelSet
    ) -> None:
        if parts > len(examples):
            raise ValueError(f"{len(examples)} examples cannot be cut into {parts} parts")
        order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(seed)).tensor_split(parts)
        self._parts = [EpochSource(_Some(examples, part.tolist()), batch_size, epochs, seed) for part in order]
        self._models = models

    @property
    def steps(self) -> int:
        """Optimizer steps in the whole run."""
        return sum(part.steps for part in self._parts)

    def batch(self, step: int) -> Batch:
        """The examples of one step; the first step of a part renews the reference."""
        place = step
        for part in self._parts:
            if place < part.steps:
                if place == 0:
                    self._models.copy_policy(self._models.reference)
                return part.batch(place)
            place -= part.steps
        raise IndexError(f"there is no step {step}")

    def state_dict(self) -> dict[str, Tensor]:
        """The reference of the part in hand."""
        reference: Any = self._models.reference
        return dict(reference.named_parameters())

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Resume with the reference of the part in hand."""
        reference: Any = self._models.reference
        with torch.no_grad():
            for name, parameter in reference.named_parameters():
                parameter.copy_(tensors[name])


@dataclass(frozen=True)
class _Some(Sequence[Example]):
    """Some of the examples, which are not read before a batch needs them."""

    examples: Sequence[Example]
    numbers: list[int]

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: Any) -> Any:
        return self.examples[self.numbers[index]]


def stack(examples: Sequence[Example]) -> Batch:
    """Items as one batch; their rows share an item number."""
    rows = [row for example in examples for row in example.rows]
    names = examples[0].columns if examples else {}
    columns = {name: torch.tensor([float(v) for example in examples for v in example.columns[name]]) for name in names}
    sizes = torch.tensor([len(example.rows) for example in examples])
    numbers = torch.repeat_interleave(torch.arange(len(examples)), sizes)
    return make_batch(rows, columns, items=numbers)
