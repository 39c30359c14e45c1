"""Runs that train on selected samples of the policy. Each kind of selection is a file in sampled/."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from posttrain.online.config import OnlineConfig
from posttrain.train.batch_sources import BatchSource, WrappedSource
from posttrain.train.step import Batch

Select = Callable[[Batch, int], Batch]
"""(whole groups, optimizer step) -> the rows to train on."""


class SampledRun(OnlineConfig):
    """Settings of a training on selected samples of the policy."""


class FilteredSource(WrappedSource):
    """A source of groups. A rule selects the rows of each step."""

    def __init__(self, inner: BatchSource, select: Select) -> None:
        super().__init__(inner)
        self._select = select
        self._metrics: dict[str, float] = {}

    def batch(self, step: int) -> Batch:
        """Return the selected rows of one step's groups."""
        groups = self._inner.batch(step)
        chosen = self._select(groups, step)
        self._metrics = {
            "reward": float(groups.columns.rows["reward"].mean()),
            "length": float(groups.columns.lengths_B.float().mean()),
            "chosen_rows": float(len(chosen)),
        }
        return chosen

    def metrics(self) -> dict[str, float]:
        """Return the mean reward and length of all samples, and the number of selected rows."""
        return {**self._metrics, **self._inner.metrics()}


def rewards_and_groups(batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the reward and the group of each row."""
    return batch.columns.rows["reward"], batch.columns.rows["group"]


def selected_rows(batch: Batch, rows_R: Tensor) -> Batch:
    """Return some rows of a batch, each as an item."""
    selected = batch.select(rows_R.tolist())
    return selected.with_columns(replace(selected.columns, item_B=None))


def groups(group_B: Tensor) -> list[Tensor]:
    """Return the row numbers of each group, ordered by first row."""
    first: dict[float, list[int]] = {}
    for row, group in enumerate(group_B.tolist()):
        first.setdefault(group, []).append(row)
    return [torch.tensor(rows, device=group_B.device) for rows in first.values()]


def stacked(numbers: list[Tensor]) -> Tensor:
    """Return row numbers as one tensor; empty if there are none."""
    return torch.stack(numbers) if numbers else torch.empty(0, dtype=torch.long)
