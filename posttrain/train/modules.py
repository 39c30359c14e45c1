"""The models of a run, and the columns that they give to a batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from posttrain.algorithms.objective import Objective
from posttrain.formulas.distill import Divergence, tiled
from posttrain.formulas.ragged import Ragged
from posttrain.measure.phases import phase
from posttrain.models.device import Device
from posttrain.models.forward import (
    add_embedding_gradient,
    embedded_leaf,
    packed_states,
    score_rows,
    score_tokens,
    value_tokens,
)
from posttrain.models.head import head_of
from posttrain.models.logp import exact_kl, token_loss_backward
from posttrain.text.layout import Layout, micro_batches, pack, sent
from posttrain.train.batch import Batch

FIXED = ("ref_logp", "anchor", "old_value", "recomputed_logp")


@dataclass(frozen=True)
class Modules:
    """The trained model and those that only look on; which are there follows from what the objective needs."""

    policy: Any
    device: Device
    reference: Any | None = None
    critic: Any | None = None
    old: Any | None = None
    teacher: Any | None = None
    divergence: Divergence | None = None
    teacher_prompts: Mapping[tuple[int, ...], Sequence[int]] | None = None
    """What the teacher sees in place of each prompt (context distillation); None: the same."""
    temperature: float = 1.0
    micro_tokens: int = 16_384

    @property
    def trained(self) -> dict[str, Any]:
        """The models whose weights change, by name."""
        return {"policy": self.policy} | ({"critic": self.critic} if self.critic is not None else {})

    def micros(self, batch: Batch) -> Iterator[Batch]:
        """The batch in parts that fit in memory, items kept whole."""
        sizes = [len(row) for row in batch.rows]
        for rows in micro_batches(sizes, batch.columns.items.tolist(), self.micro_tokens):
            yield batch.part(rows) if len(rows) < len(batch) else batch

    def with_gradient(self, micro: Batch, needs: frozenset[str]) -> Ragged:
        """The columns that the trained models give, with gradient."""
        layout = pack(micro.rows).to(self.device.torch)
        columns = on_device(micro.columns, self.device.torch)
        with self.device.autocast():
            if "score" in needs:
                return columns.with_rows(score=score_rows(self.policy, layout))
            logp, entropy = score_tokens(self.policy, layout, self.temperature)
            columns = columns.with_tokens(logp=logp, entropy=entropy)
            if "value" in needs:
                columns = columns.with_tokens(value=value_tokens(self.critic, layout))
            if "kl_old" in needs:
                columns = columns.with_tokens(kl_old=self._moved(layout))
            if "teacher_kl" in needs:
                columns = columns.with_tokens(teacher_kl=self._apart(layout, micro))
        return columns

    def backward_by_token(self, micro: Batch, objective: Objective) -> dict[str, Tensor]:
        """Add the gradient of an objective that is a sum over tokens; the loss and its metrics.

        The loss is asked tile by tile while the head's distributions are at hand, so that they are made once.
        """
        layout = pack(micro.rows).to(self.device.torch)
        columns = on_device(micro.columns, self.device.torch)
        totals: dict[str, Tensor] = {}

        def loss(part: slice, logp: Tensor, entropy: Tensor) -> Tensor:
            found = objective.loss(columns.tokens_in(part).with_tokens(logp=logp, entropy=entropy))
            for name, share in {"loss": found.total, **found.metrics}.items():
                totals[name] = totals[name] + share.detach() if name in totals else share.detach()
            return found.total

        with self.device.autocast():
            embedded_ND = embedded_leaf(self.policy, layout)
            states_ND = packed_states(self.policy, layout, embedded_ND)
            hidden_MD = states_ND.detach().index_select(0, layout.source_M)
            head = head_of(self.policy)
            grad_MD = token_loss_backward(hidden_MD, head, layout.target_M, self.temperature, loss)
        states_ND.backward(torch.zeros_like(states_ND).index_add_(0, layout.source_M, grad_MD))  # type: ignore[no-untyped-call]
        if embedded_ND is not None:
            add_embedding_gradient(self.policy, layout, embedded_ND)
        return totals

    @torch.no_grad()
    def copy_policy(self, model: Any) -> None:
        """Make a model that only looks on (the reference, the old policy) equal to the policy as it is now."""
        for mine, theirs in zip(model.parameters(), self.policy.parameters(), strict=True):
            mine.copy_(theirs)

    def _moved(self, layout: Layout) -> Tensor:
        """KL(old || policy) over the vocabulary at each token."""
        with torch.no_grad():
            before = packed_states(self.old, layout)[layout.source_M]
        now = packed_states(self.policy, layout)[layout.source_M]
        old_head = head_of(self.old).mapped(Tensor.detach)
        return exact_kl(before, old_head, now, head_of(self.policy), self.temperature)

    def _apart(self, layout: Layout, micro: Batch) -> Tensor:
        """The divergence from the teacher over the vocabulary at each token."""
        if self.divergence is None:
            raise ValueError("a teacher was asked for without a divergence")
        seen = layout
        if self.teacher_prompts is not None:
            asked = [replace(row, prompt=self.teacher_prompts[tuple(row.prompt)]) for row in micro.rows]
            seen = pack(asked).to(self.device.torch)
        with torch.no_grad():
            theirs = packed_states(self.teacher, seen)[seen.source_M]
        mine = packed_states(self.policy, layout)[layout.source_M]
        return tiled(
            self.divergence,
            mine,
            head_of(self.policy).logits,
            theirs,
            head_of(self.teacher).mapped(Tensor.detach).logits,
        )

    @phase("score")
    @torch.no_grad()
    def fill(self, batch: Batch, needs: frozenset[str]) -> Batch:
        """The batch with every column that is made before `prepare` and is not there yet."""
        wanted = [name for name in FIXED if name in needs or (name == "old_value" and "value" in needs)]
        for name in wanted:
            if name not in batch.columns.tokens:
                column = torch.cat([self._fixed(name, micro) for micro in self.micros(batch)]).cpu()
                batch = batch.with_columns(batch.columns.with_tokens(**{name: column}))
        return batch

    def _fixed(self, name: str, micro: Batch) -> Tensor:
        layout = pack(micro.rows).to(self.device.torch)
        with self.device.autocast():
            if name == "old_value":
                return value_tokens(self.critic, layout)
            model = self.reference if name == "ref_logp" else self.policy
            return score_tokens(model, layout, self.temperature)[0]


def on_device(columns: Ragged, device: torch.device) -> Ragged:
    """The columns, moved."""
    if device.type == "cpu":
        return columns
    return Ragged(
        sent(columns.lengths_B, device),
        {name: sent(part, device) for name, part in columns.rows.items()},
        {name: sent(part, device) for name, part in columns.tokens.items()},
        None if columns.item_B is None else sent(columns.item_B, device),
    )


def rows_of(columns: Ragged) -> Sequence[int]:
    """The batch rows that are left after `prepare`, in its order."""
    rows: list[int] = columns.rows["row"].tolist()
    return rows
