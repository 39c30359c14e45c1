"""One optimizer step: its batch, the gradient of its loss, and the update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import torch
from torch import Tensor

from posttrain.algorithms.objective import Loss, Objective, State, add_metrics, step_metrics
from posttrain.distributed import world
from posttrain.formulas.ragged import Ragged
from posttrain.measure.counts import count
from posttrain.models.device import repeatable
from posttrain.models.forward.forward import add_embedding_gradient, embedded_leaf, packed_states
from posttrain.models.forward.logp import head_of, loss_tiles
from posttrain.models.forward.routers import Recording
from posttrain.models.forward.unit_head import takes, unit_tiles
from posttrain.models.master_weights import gradient_of, summed_in_float32
from posttrain.models.sharding import gathered
from posttrain.rollout import Kept, TokenRow
from posttrain.text.packing import PackedRows, kept_of
from posttrain.train.model_set import ModelSet, on_device
from posttrain.train.routing import NO_ROUTERS, Routers, StepRouting


@dataclass(frozen=True)
class Batch:
    """Rows of tokens with columns. The column `row` numbers the rows."""

    rows: Sequence[TokenRow]
    columns: Ragged

    def __len__(self) -> int:
        return len(self.rows)

    def select(self, rows: Sequence[int]) -> Batch:
        """Return some rows in this order, renumbered."""
        columns = self.columns.select(torch.tensor(rows, dtype=torch.long))
        columns = columns.with_rows(row=torch.arange(len(rows)))
        return Batch([self.rows[i] for i in rows], columns)

    def with_prepared(self, step: Ragged) -> Batch:
        """Return the rows that `prepare` kept, in the order and with the columns of its result."""
        rows = step.rows["row"].tolist()
        return Batch([self.rows[i] for i in rows], step.with_rows(row=torch.arange(len(rows))))

    def with_columns(self, columns: Ragged) -> Batch:
        """Return the same rows with other columns."""
        return replace(self, columns=columns)

    def tensors(self) -> dict[str, Tensor]:
        """Return the whole batch as named tensors, for a checkpoint."""
        columns = self.columns
        saved = {"lengths": columns.lengths_B, "items": columns.items}
        saved |= {f"row.{name}": part for name, part in columns.rows.items()}
        saved |= {f"token.{name}": part for name, part in columns.tokens.items()}
        for name in ("prompt", "rest"):
            side = [getattr(row, name) for row in self.rows]
            saved[f"{name}.ids"] = torch.tensor([i for ids in side for i in ids], dtype=torch.long)
            saved[f"{name}.lengths"] = torch.tensor([len(ids) for ids in side], dtype=torch.long)
        saved["masked"] = torch.tensor([row.mask is not None for row in self.rows])
        saved["mask"] = torch.tensor([flag for row in self.rows for flag in row.mask or ()], dtype=torch.bool)
        if kept := kept_of(self.rows):
            saved |= {"kept.ids": kept.ids, "kept.counts": kept.counts}
        experts = [row.experts for row in self.rows if row.experts is not None]
        if experts and len(experts) == len(self):
            saved["experts"] = torch.cat(experts)
        return saved

    @staticmethod
    def from_tensors(saved: dict[str, Tensor]) -> Batch:
        """Return the batch from the result of `tensors`."""
        prompts, rests = (
            [part.tolist() for part in torch.split(saved[f"{name}.ids"], saved[f"{name}.lengths"].tolist())]
            for name in ("prompt", "rest")
        )
        masked, mask = saved["masked"], saved["mask"]
        sizes = (saved["rest.lengths"] * masked).tolist()
        parts = zip(torch.split(mask, sizes), masked.tolist(), strict=True)
        masks = [part.tolist() if has else None for part, has in parts]
        columns = Ragged(
            lengths_B=saved["lengths"],
            rows={name[4:]: part for name, part in saved.items() if name.startswith("row.")},
            tokens={name[6:]: part for name, part in saved.items() if name.startswith("token.")},
            item_B=saved["items"],
        )
        ends = [0, *saved["lengths"].cumsum(0).tolist()]
        kept = Kept(saved["kept.ids"], saved["kept.counts"]) if "kept.ids" in saved else None
        sets = [kept and kept.part(slice(*bounds)) for bounds in pairwise(ends)]
        tokens = (saved["prompt.lengths"] + saved["rest.lengths"]).tolist()
        experts = torch.split(saved["experts"], tokens) if "experts" in saved else [None] * len(tokens)
        return Batch([TokenRow(*fields) for fields in zip(prompts, rests, masks, sets, experts, strict=True)], columns)


def make_batch(
    rows: Sequence[TokenRow],
    row_columns: dict[str, Tensor] | None = None,
    token_columns: dict[str, Tensor] | None = None,
    items: Tensor | None = None,
) -> Batch:
    """Return a batch of rows with these columns."""
    lengths = torch.tensor([len(row.trained) for row in rows], dtype=torch.long)
    numbered = {**(row_columns or {}), "row": torch.arange(len(rows))}
    return Batch(rows, Ragged(lengths, numbered, token_columns or {}, items))


def concatenate(parts: Sequence[Batch]) -> Batch:
    """Return several batches with the same columns as one batch. The rows of an item must be in the same part."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0].columns
    return make_batch(
        [row for part in parts for row in part.rows],
        {name: torch.cat([part.columns.rows[name] for part in parts]) for name in first.rows if name != "row"},
        {name: torch.cat([part.columns.tokens[name] for part in parts]) for name in first.tokens},
    )


@dataclass(frozen=True)
class StepClosure:
    """The loss of a prepared optimizer step. A call adds its gradient to the `.grad` of the trained weights."""

    objective: Objective
    models: ModelSet
    batch: Batch
    routers: Routers = NO_ROUTERS
    state: State = field(default_factory=dict)
    """The state that the objective's `prepare` returned with the batch."""

    def __call__(self) -> dict[str, float]:
        """Accumulate gradients and metrics over all micro-batches, with one transfer from the device at the end."""
        return step_metrics(self.totals())

    def totals(self) -> dict[str, Tensor]:
        """Return the loss and metrics without transferring them. The device may still be computing."""
        totals: dict[str, Tensor] = {}
        routing = StepRouting(self.routers, self.tokens)
        parts = [*self.models.own_micro_batches(self.batch)]
        if self.routers.balance:
            routing.look_ahead([(self.models.packed(micro), counts) for micro, counts in parts])
        for micro, counts in parts:
            metrics = self._backward(micro, routing, counts=counts)
            if counts:
                add_metrics(totals, metrics)
        if not self.models.sharded:
            self._add_gradients()
        count({"train_tokens": self.tokens})
        return _of_all(totals, routing.metrics())

    def _add_gradients(self) -> None:
        """Sum the gradients over the processes. Each process has whole models."""
        if world.count() == 1:
            return
        weights = (part for model in self.models.trained.values() for part in model.parameters())
        world.add_up([gradient_of(part) for part in weights if part.requires_grad])

    @property
    def tokens(self) -> int:
        """The number of tokens in the step's rows, including prompts."""
        return sum(len(row) for row in self.batch.rows)

    @torch.no_grad()
    def loss(self) -> float:
        """Return the loss at the current weights."""
        total, routing = 0.0, StepRouting(self.routers, self.tokens)
        for micro, counts in self.models.own_micro_batches(self.batch):
            columns, recording = self._forward(micro, self.models.packed(micro))
            total += float(self.objective.loss(columns, self.state).total) * counts
            routing.add(recording, counts=counts)
        return float(sum(world.gathered(total))) + routing.loss()

    @torch.no_grad()
    def measured(self) -> dict[str, float]:
        """Return the loss and its metrics at the current weights, from one process."""
        totals: dict[str, Tensor] = {}
        for micro in self.models.micro_batches(self.batch):
            columns, _ = self._forward(micro, self.models.packed(micro))
            add_metrics(totals, _detached(self.objective.loss(columns, self.state)))
        return step_metrics(totals)

    def micro_batches(self) -> list[Batch]:
        """Return this process's micro-batches."""
        return [micro for micro, counts in self.models.own_micro_batches(self.batch) if counts]

    def _forward(self, micro: Batch, packed: PackedRows) -> tuple[Ragged, Recording]:
        """Return one micro-batch's forward pass and its routing."""
        with self.routers.record(packed) as recording:
            return self.models.forward(micro, self.objective.needs, packed), recording

    def _backward(self, micro: Batch, routing: StepRouting, *, counts: bool = True) -> dict[str, Tensor]:
        """Add one micro-batch's gradient, or zeros if it does not count. Return its loss and metrics."""
        packed = self.models.packed(micro)
        if self.objective.by_token and self.models.runtime.fused and counts and len(micro):
            return self._fused_backward(micro, packed, routing)
        columns, recording = self._forward(micro, packed)
        loss, balance = self.objective.loss(columns, self.state), routing.add(recording, counts=counts)
        total = loss.total if balance is None else loss.total + balance
        with repeatable():
            (total if counts else 0.0 * total).backward()  # type: ignore[no-untyped-call]
        return _detached(loss)

    def _fused_backward(self, micro: Batch, packed: PackedRows, routing: StepRouting) -> dict[str, Tensor]:
        """Return the same for a loss that is a sum over tokens. Autograd does not run through the head.

        The loss is computed tile by tile while the head's distributions are in memory, so these are computed only once.
        A sharded head is gathered until the end of the backward pass, which sends its gradient to the processes.
        """
        models = self.models
        totals: dict[str, Tensor] = {}
        embedded_ND = None if models.sharded else embedded_leaf(models.policy, packed)

        def forward() -> tuple[Tensor, Tensor]:
            states_ND = packed_states(models.policy, packed, embedded_ND)
            states_ND = states_ND.clone() if models.sharded else states_ND  # FSDP warns of a view
            return states_ND, self._head_gradient(micro, packed, states_ND, totals)

        with self.routers.record(packed) as recording:
            states_ND, grad_ND = gathered(models.policy, forward)
        balance = routing.add(recording)
        outputs = {states_ND: grad_ND} if balance is None else {states_ND: grad_ND, balance: None}
        with repeatable():
            torch.autograd.backward([*outputs], [*outputs.values()])
        if embedded_ND is not None:
            add_embedding_gradient(models.policy, packed, embedded_ND)
        return totals

    def _head_gradient(self, micro: Batch, packed: PackedRows, states_ND: Tensor, totals: dict[str, Tensor]) -> Tensor:
        """Add the head's gradient, and the loss and metrics to `totals`. Return the gradient of the hidden states."""
        columns = on_device(micro.columns, self.models.runtime.device)
        hidden_MD = states_ND.detach().index_select(0, packed.source_M)
        grad_MD = torch.empty_like(hidden_MD)
        head = head_of(self.models.policy)
        in_one = not self.objective.entropy_in_loss and takes(head, hidden_MD)
        tiles = unit_tiles if in_one else loss_tiles
        with summed_in_float32(head.weight_VD, head.bias_V):
            for tile in tiles(hidden_MD, head, packed.target_M, self.models.temperature, packed.kept):
                part = columns.tokens_in(tile.part).with_tokens(logp=tile.logp, entropy=tile.entropy)
                loss = self.objective.loss(part, self.state)
                grad_MD[tile.part] = tile.backward(loss.total)
                add_metrics(totals, _detached(loss))
        return torch.zeros_like(states_ND).index_add_(0, packed.source_M, grad_MD)


def _of_all(totals: Mapping[str, Tensor], routing: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the metrics over all processes, read in one transfer.

    `routing`: metrics that already cover all processes.
    """
    every = {**totals, **routing}
    if world.count() == 1:
        return every
    numbers = torch.stack([part.detach().double() for part in every.values()]).tolist() if every else []
    local = dict(zip(every, numbers, strict=True))
    reduced: dict[str, Tensor] = {}
    for part in world.gathered({name: local[name] for name in totals}):
        add_metrics(reduced, {name: torch.tensor(value, dtype=torch.float64) for name, value in part.items()})
    return reduced | {name: torch.tensor(local[name], dtype=torch.float64) for name in routing}


def _detached(loss: Loss) -> dict[str, Tensor]:
    return {"loss": loss.total.detach(), **{name: value.detach() for name, value in loss.metrics.items()}}
