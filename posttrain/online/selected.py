"""The rows of a step that a rule chooses among the policy's own samples (algorithms/sampled_rows.py)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from posttrain.algorithms.sampled_rows import AllAbove, BestAgainstWorst, Reaching, RejectionSampled, Rising
from posttrain.choices import Options
from posttrain.formulas.pairing import above, all_against_all, best_against_worst, best_of_group, rejection_sampled, rising_threshold
from posttrain.train.batch import Batch, Source, WrappedSource

Choose = Callable[[Batch, int], Batch]
"""(whole groups, optimizer step) -> the rows to train on."""


class FilteredSource(WrappedSource):
    """A source of groups, of which a rule chooses the rows of each step."""

    def __init__(self, inner: Source, choose: Choose) -> None:
        super().__init__(inner)
        self._choose = choose
        self._seen: dict[str, float] = {}

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

    def metrics(self) -> dict[str, float]:
        """The reward of all samples, and how many were chosen."""
        return {**self._seen, **self._inner.metrics()}


def pair_rule(select: Options, seed: int) -> Choose:
    """The pairs that the settings ask for."""

    def choose(batch: Batch, step: int) -> Batch:
        reward_B, group_B = _judged(batch)
        match select:
            case BestAgainstWorst():
                return paired(batch, *best_against_worst(reward_B, group_B, select.gap))
            case AllAbove():
                return paired(batch, *all_against_all(reward_B, group_B, select.certainty, select.scale))
            case RejectionSampled():
                draw = torch.Generator().manual_seed(seed * 1_000_003 + step)
                accepted = rejection_sampled(reward_B, group_B, select.keep, select.temperature, draw)
                return paired(batch, *accepted)
        raise TypeError(f"no rule for {select.type}")

    return choose


def best_rule(select: Options, steps_a_round: int) -> Choose:
    """The samples that the settings ask for; where none reaches the mark, the best of all."""

    def choose(batch: Batch, step: int) -> Batch:
        reward_B, group_B = _judged(batch)
        match select:
            case Rising():
                iteration = step // (select.rounds * steps_a_round)
                mark = rising_threshold(reward_B, iteration, tuple(select.quantiles))
            case Reaching():
                mark = select.threshold
            case _:
                return _part(batch, best_of_group(reward_B, group_B))
        return _part(batch, above(reward_B, min(mark, float(reward_B.max()))))

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


def _judged(batch: Batch) -> tuple[Tensor, Tensor]:
    return batch.columns.rows["reward"], batch.columns.rows["group"]


def _part(batch: Batch, rows_R: Tensor) -> Batch:
    part = batch.part(rows_R.tolist())
    return part.with_columns(replace(part.columns, item_B=None))
