"""Batch sources over the policy's own samples: a selection of them (sampled_config.py), or with data added."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from pydantic import Field
from torch import Tensor

from posttrain.algorithms.sampled_config import AllAbove, BestAgainstWorst, Reaching, RejectionSampled, Rising
from posttrain.params.choices import Options
from posttrain.params.params import Params
from posttrain.train.batch_sources import BatchSource, EpochSource, Example, WrappedSource
from posttrain.train.step import Batch, concatenate, make_batch

Select = Callable[[Batch, int], Batch]
"""(whole groups, optimizer step) -> the rows to train on."""


class FilteredSource(WrappedSource):
    """A source of groups from which a rule selects the rows of each step."""

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
        """Return the mean reward and length of all samples, and how many rows were selected."""
        return {**self._metrics, **self._inner.metrics()}


def pair_rule(select: Options, seed: int) -> Select:
    """Return the rule that selects pairs, from its options."""

    def select_rows(batch: Batch, step: int) -> Batch:
        reward_B, group_B = _rewards_and_groups(batch)
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

    return select_rows


def best_rule(select: Options, steps_a_round: int) -> Select:
    """Return the rule that selects samples, from its options; where none reaches the threshold, the best of all.

    Thresholds are on the outcome, without rewards of form and length.
    """

    def select_rows(batch: Batch, step: int) -> Batch:
        reward_B, group_B = _rewards_and_groups(batch)
        outcome_B = batch.columns.rows["outcome"]
        match select:
            case Rising():
                iteration = step // (select.rounds * steps_a_round)
                threshold = rising_threshold(outcome_B, iteration, tuple(select.quantiles))
            case Reaching():
                threshold = select.threshold
            case _:
                return _select_rows(batch, best_of_group(reward_B, group_B))
        return _select_rows(batch, above(outcome_B, min(threshold, float(outcome_B.max()))))

    return select_rows


def paired(batch: Batch, chosen: Tensor, rejected: Tensor) -> Batch:
    """Alternating chosen and rejected rows; each pair is an item.

    Without any pair the first row is paired with itself, so the step has zero gradient.
    """
    if not chosen.numel():
        chosen = rejected = torch.zeros(1, dtype=torch.long)
    part = _select_rows(batch, torch.stack([chosen, rejected], dim=1).flatten())
    pairs = chosen.numel()
    columns = replace(part.columns, item_B=torch.arange(pairs).repeat_interleave(2))
    return part.with_columns(columns.with_rows(side=torch.tensor([1.0, -1.0]).repeat(pairs)))


def _rewards_and_groups(batch: Batch) -> tuple[Tensor, Tensor]:
    return batch.columns.rows["reward"], batch.columns.rows["group"]


def _select_rows(batch: Batch, rows_R: Tensor) -> Batch:
    selected = batch.select(rows_R.tolist())
    return selected.with_columns(replace(selected.columns, item_B=None))


def best_against_worst(reward_B: Tensor, group_B: Tensor, gap: float = 0.0) -> tuple[Tensor, Tensor]:
    """Highest and lowest reward of each group whose rewards differ by more than `gap` (online DPO, Guo 2024)."""
    chosen, rejected = [], []
    for rows in groups(group_B):
        reward = reward_B[rows]
        if float(reward.max() - reward.min()) > gap:
            chosen.append(rows[reward.argmax()])
            rejected.append(rows[reward.argmin()])
    return _rows(chosen), _rows(rejected)


def all_against_all(reward_B: Tensor, group_B: Tensor, threshold: float, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return every pair of a group with sigmoid((r_i - r_j) / scale) above a threshold >= 0.5 (RS-DPO, Khaki 2024)."""
    if not 0.5 <= threshold < 1:
        raise ValueError(f"threshold = {threshold}: below 0.5 a pair would be taken both ways round")
    chosen, rejected = [], []
    for rows in groups(group_B):
        reward = reward_B[rows]
        won, lost = (torch.sigmoid((reward[:, None] - reward[None, :]) / scale) > threshold).nonzero(as_tuple=True)
        chosen.append(rows[won])
        rejected.append(rows[lost])
    return _joined(chosen), _joined(rejected)


def rejection_sampled(
    reward_B: Tensor, group_B: Tensor, keep: int, beta: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Pairs among `keep` samples of each group, accepted with probability exp((r - r_max) / beta) (RSO, Liu 2023).

    r_max is the highest reward not yet accepted; accepted samples are paired two by two at random, ties left out.
    """
    chosen, rejected = [], []
    for rows in groups(group_B):
        taken = _accepted(reward_B[rows], min(keep, rows.numel()), beta, generator)
        shuffled = taken[torch.randperm(taken.numel(), generator=generator)]
        for left, right in shuffled[: taken.numel() // 2 * 2].view(-1, 2).tolist():
            first, second = rows[left], rows[right]
            if reward_B[first] == reward_B[second]:
                continue
            chosen.append(first if reward_B[first] > reward_B[second] else second)
            rejected.append(second if reward_B[first] > reward_B[second] else first)
    return _rows(chosen), _rows(rejected)


def best_of_group(reward_B: Tensor, group_B: Tensor) -> Tensor:
    """Return the highest reward of each group, the first of equals (RAFT, Dong 2023)."""
    return _rows([rows[reward_B[rows].argmax()] for rows in groups(group_B)])


def above(reward_B: Tensor, threshold: float) -> Tensor:
    """Return every sample whose reward reaches the threshold (ReST-EM, Singh 2023)."""
    return (reward_B >= threshold).nonzero().squeeze(1)


def rising_threshold(reward_B: Tensor, iteration: int, quantiles: tuple[float, ...]) -> float:
    """Return the quantile that iteration n filters at; quantiles must not fall (ReST, Gulcehre 2023)."""
    if list(quantiles) != sorted(quantiles) or not quantiles:
        raise ValueError(f"quantiles = {quantiles}: ReST filters harder with each iteration, so they must not fall")
    return float(reward_B.double().quantile(quantiles[min(iteration, len(quantiles) - 1)]))


def groups(group_B: Tensor) -> list[Tensor]:
    """Return the row numbers of each group, groups by their first row."""
    first: dict[float, list[int]] = {}
    for row, group in enumerate(group_B.tolist()):
        first.setdefault(group, []).append(row)
    return [torch.tensor(rows, device=group_B.device) for rows in first.values()]


def _accepted(reward_G: Tensor, keep: int, beta: float, generator: torch.Generator) -> Tensor:
    left = list(range(reward_G.numel()))
    taken: list[int] = []
    while len(taken) < keep:
        highest = max(float(reward_G[i]) for i in left)
        for i in list(left):
            draw = float(torch.rand((), generator=generator))
            if len(taken) < keep and draw < torch.exp((reward_G[i] - highest) / beta):
                taken.append(i)
                left.remove(i)
    return torch.tensor(taken)


def _rows(numbers: list[Tensor]) -> Tensor:
    return torch.stack(numbers) if numbers else torch.empty(0, dtype=torch.long)


def _joined(numbers: list[Tensor]) -> Tensor:
    return torch.cat(numbers) if numbers else torch.empty(0, dtype=torch.long)


class TextParams(Params):
    """Pretraining text in addition to the samples (PPO-ptx)."""

    rows: int = Field(8, ge=1, description="windows of text in each optimizer step")
    window: int = Field(64, ge=2, description="tokens per window")


class PtxSource(WrappedSource):
    """Samples plus rows of pretraining text (PPO-ptx), with 1 in the column `pretrain`; their other columns are 0."""

    def __init__(self, inner: BatchSource, windows: Sequence[Example], rows: int, seed: int) -> None:
        super().__init__(inner)
        self._text = EpochSource(windows, rows, 1, seed)

    def batch(self, step: int) -> Batch:
        """Return the samples of one step, then its text."""
        samples, text = self._inner.batch(step), self._text.batch(step)
        tokens = int(text.columns.lengths_B.sum())
        empty = make_batch(
            text.rows,
            {name: column.new_zeros(len(text), *column.shape[1:]) for name, column in samples.columns.rows.items()},
            {name: torch.zeros(tokens, dtype=column.dtype) for name, column in samples.columns.tokens.items()},
        )
        return concatenate([_with_pretrain(samples, text=False), _with_pretrain(empty, text=True)])


def _with_pretrain(batch: Batch, *, text: bool) -> Batch:
    columns = batch.columns.with_rows(pretrain=torch.full((len(batch),), text))
    return batch.with_columns(replace(columns, item_B=None))
