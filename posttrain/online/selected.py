"""Batches of the policy's own samples chosen by reward: pairs for a preference row, the best for the likelihood.

online DPO, IPO ...     a preference row over `best_pairs` (Guo 2024) or `telling_pairs` (RS-DPO, Khaki 2024)
RAFT, ReST, ReST-EM     the likelihood over `best` (Dong 2023), `rising` (Gulcehre 2023) or `reaching` (Singh 2023)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from posttrain.formulas import pairing
from posttrain.train.batch import Batch, Source

Choose = Callable[[Batch, int], Batch]
"""(whole groups, optimizer step) -> the rows to train on."""


class Selected:
    """A source of groups, of which a rule chooses the rows of each step."""

    def __init__(self, inner: Source, choose: Choose) -> None:
        self._inner, self._choose = inner, choose
        self._seen: dict[str, float] = {}

    @property
    def steps(self) -> int:
        """Optimizer steps in the whole run."""
        return self._inner.steps

    def batch(self, step: int) -> Batch:
        """The chosen rows of one step's groups."""
        groups = self._inner.batch(step)
        chosen = self._choose(groups, step)
        self._seen = {
            "reward": float(groups.columns.rows["reward"].mean()),
            "length": float(groups.columns.lengths_B.float().mean()),
            "chosen_rows": float(len(chosen)),
        }
        return chosen

    def seen(self) -> dict[str, float]:
        """The reward of all samples, and how many were chosen."""
        return {**self._seen, **self._inner.seen()}

    def tensors(self) -> dict[str, Tensor]:
        """What the inner source keeps: the choice follows from it."""
        return self._inner.tensors()

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Take up what `tensors` kept."""
        self._inner.load(tensors)


def best_pairs(gap: float = 0.0) -> Choose:
    """The best sample of each group against the worst, where their rewards differ by more than `gap`."""
    return lambda batch, _: paired(batch, *pairing.best_against_worst(*_judged(batch), gap))


def telling_pairs(threshold: float, scale: float = 1.0) -> Choose:
    """Every pair of a group with sigmoid((r_i - r_j) / scale) above the threshold."""
    return lambda batch, _: paired(batch, *pairing.all_against_all(*_judged(batch), threshold, scale))


def best() -> Choose:
    """The best sample of each group."""
    return lambda batch, _: _part(batch, pairing.best_of_group(*_judged(batch)))


def reaching(threshold: float) -> Choose:
    """Every sample whose reward reaches the threshold; the best one where none does."""
    return lambda batch, _: _reaching(batch, threshold)


def rising(quantiles: tuple[float, ...], steps: int) -> Choose:
    """Every sample above a quantile of the step's rewards; `steps` optimizer steps share one quantile."""

    def choose(batch: Batch, step: int) -> Batch:
        return _reaching(batch, pairing.rising_threshold(batch.columns.rows["reward"], step // steps, quantiles))

    return choose


def paired(batch: Batch, chosen: Tensor, rejected: Tensor) -> Batch:
    """Chosen and rejected rows side by side, a pair an item.

    Where no pair is telling the first row stands against itself, whose gradient is 0: the step then teaches nothing.
    """
    if not chosen.numel():
        chosen = rejected = torch.zeros(1, dtype=torch.long)
    part = _part(batch, torch.stack([chosen, rejected], dim=1).flatten())
    pairs = chosen.numel()
    columns = replace(part.columns, item_B=torch.arange(pairs).repeat_interleave(2))
    return part.with_columns(columns.with_rows(side=torch.tensor([1.0, -1.0]).repeat(pairs)))


def _reaching(batch: Batch, threshold: float) -> Batch:
    reward_B = batch.columns.rows["reward"]
    return _part(batch, pairing.above(reward_B, min(threshold, float(reward_B.max()))))


def _judged(batch: Batch) -> tuple[Tensor, Tensor]:
    return batch.columns.rows["reward"], batch.columns.rows["group"]


def _part(batch: Batch, rows_R: Tensor) -> Batch:
    part = batch.part(rows_R.tolist())
    return part.with_columns(replace(part.columns, item_B=None))
