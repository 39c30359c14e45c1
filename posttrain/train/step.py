"""One optimizer step as the update rules see it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from posttrain.algorithms.objective import Loss, Objective
from posttrain.models.forward import add_embedding_gradient, embedded_leaf, packed_states
from posttrain.models.logp import head_of, token_loss_backward
from posttrain.text.layout import pack
from posttrain.train.batch import Batch
from posttrain.train.model_set import ModelSet, on_device


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
            return self._fused_backward(micro)
        loss = self.objective.loss(self.models.with_gradient(micro, self.objective.needs))
        loss.total.backward()  # type: ignore[no-untyped-call]
        return _detached(loss)

    def _fused_backward(self, micro: Batch) -> dict[str, Tensor]:
        """The same for a loss that is a sum over tokens, without autograd through the head.

        The loss is asked tile by tile while the head's distributions are at hand, so that they are made once.
        """
        models = self.models
        layout = pack(micro.rows).to(models.runtime.torch)
        columns = on_device(micro.columns, models.runtime.torch)
        totals: dict[str, Tensor] = {}

        def loss(part: slice, logp: Tensor, entropy: Tensor) -> Tensor:
            found = self.objective.loss(columns.tokens_in(part).with_tokens(logp=logp, entropy=entropy))
            for name, share in _detached(found).items():
                totals[name] = totals[name] + share if name in totals else share
            return found.total

        with models.runtime.autocast():
            embedded_ND = embedded_leaf(models.policy, layout)
            states_ND = packed_states(models.policy, layout, embedded_ND)
            hidden_MD = states_ND.detach().index_select(0, layout.source_M)
            grad_MD = token_loss_backward(hidden_MD, head_of(models.policy), layout.target_M, models.temperature, loss)
        states_ND.backward(torch.zeros_like(states_ND).index_add_(0, layout.source_M, grad_MD))  # type: ignore[no-untyped-call]
        if embedded_ND is not None:
            add_embedding_gradient(models.policy, layout, embedded_ND)
        return totals


def _detached(loss: Loss) -> dict[str, Tensor]:
    return {"loss": loss.total.detach(), **{name: share.detach() for name, share in loss.metrics.items()}}
