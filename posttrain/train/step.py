"""One optimizer step as the update rules see it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from posttrain.algorithms.objective import Objective
from posttrain.train.batch import Batch
from posttrain.train.model_set import ModelSet


@dataclass(frozen=True)
class StepClosure:
    """The prepared rows of a step. A call adds the gradient of their loss to the trained weights."""

    objective: Objective
    models: ModelSet
    batch: Batch

    def __call__(self) -> dict[str, float]:
        """Add up the gradients and metrics of all micro-batches; one transfer from the device at the end."""
        totals: dict[str, Tensor] = defaultdict(lambda: torch.zeros((), device=self.models.runtime.torch))
        for micro in self.micro_batches():
            for name, share in self._backward(micro).items():
                totals[name] = totals[name] + share
        values: list[float] = torch.stack([part.double() for part in totals.values()]).tolist()
        return dict(zip(totals, values, strict=True))

    @torch.no_grad()
    def loss(self) -> float:
        """The loss at the current weights."""
        columns = (self.models.with_gradient(micro, self.objective.needs) for micro in self.micro_batches())
        return sum(float(self.objective.loss(one).total) for one in columns)

    def micro_batches(self) -> Iterator[Batch]:
        """This process's parts of the rows."""
        return self.models.runtime.share(self.models.micro_batches(self.batch))

    def _backward(self, micro: Batch) -> dict[str, Tensor]:
        """Add one micro-batch's gradient; its loss and metrics."""
        if self.objective.by_token and self.models.runtime.fused and len(micro):
            return self.models.backward_by_token(micro, self.objective)
        loss = self.objective.loss(self.models.with_gradient(micro, self.objective.needs))
        loss.total.backward()  # type: ignore[no-untyped-call]
        return {"loss": loss.total.detach(), **{name: share.detach() for name, share in loss.metrics.items()}}
