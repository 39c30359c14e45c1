"""The preference objective (DPO, KTO and others), over pairs (two rows per item) or unpaired feedback."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from posttrain.algorithms.objective import (
    HeldoutItems,
    Loss,
    Objective,
    Prepared,
    State,
    columns_before_prepare,
    require_columns,
)
from posttrain.algorithms.preference_config import PreferenceConfig
from posttrain.algorithms.preference_loss import Match, PairLoss, UnaryLoss
from posttrain.formulas.policy import k1
from posttrain.formulas.ragged import Ragged, per_item


@dataclass(frozen=True)
class PreferenceObjective(Objective):
    """The objective of a preset in PREFERENCE_ROWS."""

    config: PreferenceConfig

    @cached_property
    def loss_entry(self) -> PairLoss | UnaryLoss:
        """The loss: an entry of the table, or the user's own loss."""
        return self.config.loss_entry

    @property
    def needs(self) -> frozenset[str]:
        needs = {"side"} if isinstance(self.loss_entry, PairLoss) else {"label", "step_start_logp"}
        needs |= {"step_start_logp"} if self.matched else set()
        return frozenset(needs | ({"ref_logp"} if self.config.reference else set()))

    @property
    def matched(self) -> bool:
        """True if answers are compared with answers of the step's other pairs."""
        return isinstance(self.loss_entry, PairLoss) and self.loss_entry.match is not None

    @property
    def mismatched(self) -> bool:
        """True if rows with label 0 (a prompt with another prompt's answer) are needed to estimate the KL."""
        return isinstance(self.loss_entry, UnaryLoss) and self.loss_entry.shift == "mismatched"

    def initial_state(self) -> State:
        if isinstance(self.loss_entry, PairLoss):
            return {}
        return {"shift": 0.0} if self.mismatched else {"shift": 0.0, "steps": 0.0}

    @torch.no_grad()
    def prepare(self, step: Ragged, state: State) -> Prepared:
        """Return the weights 1 / items per row; with unpaired feedback also the shift.

        Rows that only estimate it are removed.
        """
        require_columns(step, columns_before_prepare(self.needs), self.config.loss.type)
        if isinstance(self.loss_entry, UnaryLoss):
            return self._prepare_feedback(step, dict(state))
        _check_pairs(step)
        columns = {"against": self._matches(self.loss_entry.match, step)} if self.loss_entry.match else {}
        weight_B = per_item(step.items) * step.rows.get("counts", 1.0)
        counts = bool(weight_B.any())
        return Prepared(step.with_rows(weight=weight_B, **columns), dict(state), counts=counts)

    def loss(self, micro: Ragged, state: State) -> Loss:
        """Return the sum over items of weight * loss, plus the chosen answers' NLL."""
        config, logp = self.config, micro.tokens["logp"]
        weight_B = micro.rows["weight"].to(torch.promote_types(logp.dtype, torch.float32))
        relative_B = self._relative(micro, logp)
        if isinstance(self.loss_entry, UnaryLoss):
            good_B, total, metrics = self._feedback(self.loss_entry, micro, relative_B, weight_B, state["shift"])
        else:
            good_B, total, metrics = self._pairs(self.loss_entry, micro, relative_B, weight_B)
        if config.nll:
            nll = -torch.where(good_B, weight_B * micro.mean_rows(logp), 0.0).sum()
            metrics["nll"] = nll.detach()
            total = total + config.nll * nll
        return Loss(total, {**metrics, **self._divergence(micro, weight_B)})

    def _prepare_feedback(self, step: Ragged, state: State) -> Prepared:
        label_B, relative_B = step.rows["label"], self._relative(step, step.tokens["step_start_logp"])
        if self.mismatched:
            mismatched = relative_B[label_B == 0]
            state["shift"] = float(mismatched.mean().clamp(min=0)) if mismatched.numel() else 0.0
        else:
            state["steps"] += 1
            state["shift"] += (float(relative_B[label_B != 0].mean()) - state["shift"]) / state["steps"]
        step = step.select(label_B != 0)
        metrics = {"z0" if self.mismatched else "shift": state["shift"]}
        return Prepared(step.with_rows(weight=per_item(step.items)), state, metrics)

    def _matches(self, match: Match, step: Ragged) -> Tensor:
        """Return what each answer is compared with [B], as log-probs relative to the reference."""
        relative_B = self._relative(step, step.tokens["step_start_logp"])
        ref_B = self._reduced(step, step.tokens["ref_logp"].to(relative_B.dtype))
        chosen, rejected = _chosen_and_rejected(step)
        matches = match(relative_B[chosen], relative_B[rejected], ref_B[chosen] - ref_B[rejected])
        return torch.empty_like(relative_B).index_put((torch.cat([chosen, rejected]),), torch.cat(matches))

    def _pairs(
        self, entry: PairLoss, micro: Ragged, relative_B: Tensor, weight_B: Tensor
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        good_B = micro.rows["side"] > 0
        chosen, rejected = _chosen_and_rejected(micro)
        weight, h, l = weight_B[chosen], relative_B[chosen], relative_B[rejected]  # noqa: E741
        if entry.match is None:
            total = (weight * entry.loss(h, l, self.config.loss)).sum()
        else:  # each side has its own gradient, and the loss counts once
            against_B = micro.rows["against"].to(h.dtype)
            lost = entry.loss(against_B[rejected], l, self.config.loss)
            total = (weight * (entry.loss(h, against_B[chosen], self.config.loss) + lost - lost.detach())).sum()
        metrics = {
            "accuracy": (weight * (h > l)).sum(),
            "margin": (weight * (h - l)).sum().detach(),
            "chosen": (weight * h).sum().detach(),
            "rejected": (weight * l).sum().detach(),
        }
        return good_B, total, metrics

    def heldout(self, micro: Ragged) -> HeldoutItems:
        """Return the loss of each pair (computed separately unless `matched`), or of each answer with a shift of 0."""
        logp, entry = micro.tokens["logp"], self.loss_entry
        relative_B = self._relative(micro, logp)
        if isinstance(entry, UnaryLoss):
            label_B = micro.rows["label"]
            loss_I = entry.loss(relative_B, label_B, relative_B.new_zeros(()), self.config.loss)
            right_I, good = torch.where(label_B > 0, relative_B > 0, relative_B < 0), label_B > 0
            logps_IK = None
        else:
            chosen, rejected = _chosen_and_rejected(micro)
            h, l = relative_B[chosen], relative_B[rejected]  # noqa: E741
            less = l if entry.match is None else micro.rows["against"].to(l.dtype)[chosen]
            loss_I, right_I, good = entry.loss(h, less, self.config.loss), h > l, chosen
            logps_IK = micro.sum_rows(logp)[torch.stack([chosen, rejected], 1)]
        if self.config.nll:
            nll_B = -micro.mean_rows(logp)
            loss_I = loss_I + self.config.nll * (torch.where(good, nll_B, 0.0) if logps_IK is None else nll_B[good])
        return HeldoutItems(loss_I, torch.ones_like(loss_I), {"accuracy": right_I}, logps_IK)

    def _feedback(
        self, entry: UnaryLoss, micro: Ragged, relative_B: Tensor, weight_B: Tensor, number: float
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        label_B, shift = micro.rows["label"], relative_B.detach().new_full((), number)
        losses_B = entry.loss(relative_B, label_B, shift, self.config.loss)
        correct = torch.where(label_B > 0, relative_B > shift, relative_B < shift)
        return label_B > 0, (weight_B * losses_B).sum(), {"accuracy": (weight_B * correct).sum()}

    def _relative(self, step: Ragged, logp: Tensor) -> Tensor:
        """Return h or l of each row: the log-prob, relative to the reference if there is one, summed or averaged."""
        logp = logp.to(torch.promote_types(logp.dtype, torch.float32))
        return self._reduced(step, logp - step.tokens["ref_logp"] if self.config.reference else logp)

    def _reduced(self, step: Ragged, values_N: Tensor) -> Tensor:
        return step.sum_rows(values_N) if self.config.reduce == "sum" else step.mean_rows(values_N)

    @torch.no_grad()
    def _divergence(self, micro: Ragged, weight_B: Tensor) -> dict[str, Tensor]:
        if not self.config.reference:
            return {}
        mean_B = weight_B * (0.5 if "side" in micro.rows else 1.0)
        shift_N = k1(micro.tokens["logp"], micro.tokens["ref_logp"])
        return {"logp_shift": (mean_B * micro.mean_rows(shift_N)).sum()}


def _chosen_and_rejected(micro: Ragged) -> tuple[Tensor, Tensor]:
    """Return the indices of each pair's chosen and rejected rows. A mask would wait for the GPU."""
    left, right = micro.items.argsort(stable=True).view(-1, 2).unbind(1)
    first = micro.rows["side"][left] > 0
    return torch.where(first, left, right), torch.where(first, right, left)


def _check_pairs(step: Ragged) -> None:
    """Check that each item is one chosen and one rejected row."""
    _, index_B = torch.unique(step.items, return_inverse=True)
    sides_B = step.rows["side"].sign().long()
    sides = sides_B.new_zeros(len(step)).index_add_(0, index_B, sides_B)
    counts = sides_B.new_zeros(len(step)).index_add_(0, index_B, torch.ones_like(sides_B))
    if bool((sides_B == 0).any() | (sides != 0).any() | ((counts != 0) & (counts != 2)).any()):
        raise ValueError("each item must be one chosen row (side +1) and one rejected row (side -1)")
