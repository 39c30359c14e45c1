"""Rows of unequal length as flat columns, and the three operations that everything else is made of.

A batch of B rows with N tokens in all is `lengths_B` and flat columns: tokens [N] in row order, rows [B]. There is no
padding, so no result can depend on it. Padded tensors come in through `from_padded`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor


def sum_rows(values_N: Tensor, lengths_B: Tensor) -> Tensor:
    """Sum of each row's tokens: [N] -> [B]; an empty row sums to 0."""
    _check(values_N, lengths_B)
    if values_N.numel() == 0:
        return values_N.new_zeros(lengths_B.numel())
    return torch.segment_reduce(values_N, "sum", lengths=lengths_B, unsafe=True)


def mean_rows(values_N: Tensor, lengths_B: Tensor) -> Tensor:
    """Mean of each row's tokens: [N] -> [B]; an empty row has mean 0."""
    return sum_rows(values_N, lengths_B) / lengths_B.clamp(min=1)


def spread(values_B: Tensor, lengths_B: Tensor, count: int | None = None) -> Tensor:
    """Each row's value on each of its tokens: [B] -> [N]; a GPU is waited for unless N is told."""
    return torch.repeat_interleave(values_B, lengths_B, output_size=count)


def places(lengths_B: Tensor) -> Tensor:
    """Each token's position in its row, from 0: [B] -> [N]."""
    starts_N = spread(lengths_B.cumsum(0) - lengths_B, lengths_B)
    return torch.arange(starts_N.numel(), device=lengths_B.device) - starts_N


def last_tokens(lengths_B: Tensor) -> Tensor:
    """The flat index of each row's last token; rows must not be empty."""
    return lengths_B.cumsum(0) - 1


def to_padded(values_N: Tensor, lengths_B: Tensor, fill: float = 0.0) -> Tensor:
    """Flat tokens as [B, T], padded on the right."""
    _check(values_N, lengths_B)
    width = int(lengths_B.max()) if lengths_B.numel() else 0
    mask_BT = torch.arange(width, device=lengths_B.device) < lengths_B[:, None]
    padded_BT = values_N.new_full(mask_BT.shape, fill)
    return padded_BT.masked_scatter(mask_BT, values_N)


def from_padded(values_BT: Tensor, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
    """The marked tokens of a padded tensor as (flat tokens [N], lengths [B]); padding may be on either side."""
    if values_BT.shape != mask_BT.shape:
        raise ValueError(f"values {tuple(values_BT.shape)} and mask {tuple(mask_BT.shape)} differ in shape")
    mask_BT = mask_BT.bool()
    return values_BT[mask_BT], mask_BT.sum(dim=1)


def _check(values_N: Tensor, lengths_B: Tensor) -> None:
    if values_N.dim() != 1 or lengths_B.dim() != 1:
        raise ValueError(f"expected flat tokens and lengths, got {tuple(values_N.shape)} and {tuple(lengths_B.shape)}")


@dataclass(frozen=True)
class Ragged:
    """The columns of some rows: `rows` holds [B] or [B, K] tensors, `tokens` flat [N] tensors.

    Rows that must stay together in a micro-batch (a pair, the ranked answers of a prompt) share a number in
    `item_B`; an item's rows are adjacent. By default each row is an item.
    """

    lengths_B: Tensor
    rows: Mapping[str, Tensor] = field(default_factory=dict)
    tokens: Mapping[str, Tensor] = field(default_factory=dict)
    item_B: Tensor | None = None

    def __post_init__(self) -> None:
        # a look at lengths on a device would wait for it, and they were checked before they went there
        count = next((column.numel() for column in self.tokens.values()), 0)
        if self.lengths_B.device.type == "cpu":
            count = int(self.lengths_B.sum())
        for name, column in self.rows.items():
            if column.shape[:1] != self.lengths_B.shape:
                raise ValueError(f"row column '{name}' has shape {tuple(column.shape)}, there are {len(self)} rows")
        for name, column in self.tokens.items():
            if column.shape != (count,):
                raise ValueError(f"token column '{name}' has shape {tuple(column.shape)}, there are {count} tokens")

    def __len__(self) -> int:
        return self.lengths_B.numel()

    @property
    def items(self) -> Tensor:
        """The item number of each row [B]."""
        return torch.arange(len(self), device=self.lengths_B.device) if self.item_B is None else self.item_B

    def with_rows(self, **columns: Tensor) -> Ragged:
        """The same rows with row columns added or replaced."""
        return replace(self, rows={**self.rows, **columns})

    def with_tokens(self, **columns: Tensor) -> Ragged:
        """The same rows with token columns added or replaced."""
        return replace(self, tokens={**self.tokens, **columns})

    def select(self, index_R: Tensor) -> Ragged:
        """Some rows, in the order given; every column follows."""
        index_R = index_R.to(self.lengths_B.device)
        if index_R.dtype == torch.bool:
            index_R = index_R.nonzero().squeeze(1)
        lengths_R = self.lengths_B[index_R]
        starts_R = (self.lengths_B.cumsum(0) - self.lengths_B)[index_R]
        at_N = spread(starts_R, lengths_R) + places(lengths_R)
        return Ragged(
            lengths_B=lengths_R,
            rows={name: column[index_R] for name, column in self.rows.items()},
            tokens={name: column[at_N] for name, column in self.tokens.items()},
            item_B=None if self.item_B is None else self.item_B[index_R],
        )

    def tokens_in(self, part: slice) -> Ragged:
        """Some neighbouring tokens as one row that has token columns only."""
        tokens = {name: column[part] for name, column in self.tokens.items()}
        return Ragged(torch.tensor([part.stop - part.start]), tokens=tokens)

    def overlaid(self, part: Ragged, chosen_B: Tensor) -> Ragged:
        """These rows with the new columns of `part`, which are their rows where chosen; 0 on all other rows."""
        chosen_N = self.spread(chosen_B)
        rows = {
            name: column.new_zeros(len(self)).masked_scatter(chosen_B, column)
            for name, column in part.rows.items()
            if name not in self.rows
        }
        tokens = {
            name: column.new_zeros(chosen_N.numel()).masked_scatter(chosen_N, column)
            for name, column in part.tokens.items()
            if name not in self.tokens
        }
        return self.with_rows(**rows).with_tokens(**tokens)

    def sum_rows(self, values_N: Tensor) -> Tensor:
        """Sum of each row's tokens."""
        return sum_rows(values_N, self.lengths_B)

    def mean_rows(self, values_N: Tensor) -> Tensor:
        """Mean of each row's tokens."""
        return mean_rows(values_N, self.lengths_B)

    def spread(self, values_B: Tensor) -> Tensor:
        """Each row's value on each of its tokens."""
        return spread(values_B, self.lengths_B, next((column.numel() for column in self.tokens.values()), None))
