"""Rows of unequal length as flat columns: row sums and means, token weights, random numbers per position.

A batch of B rows with N tokens in total is `lengths_B` and flat columns: tokens [N] in row order, rows [B]. There is no
padding, so no result can depend on it. Padded tensors are converted by `from_padded`.

Aggregation is a weight per token. It is computed once per optimizer step, before the step is cut into micro-batches or
split over processes, so the loss is sum(weight * term) in any order of summation. Random numbers are counter-based:
each belongs to a row and a position. So a sample never depends on its neighbours, and there is no generator state to
save:

    u = mix(key_row + t * golden) / 2^53        mix: SplitMix64's finaliser (Steele 2014)
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor


def sum_rows(values_N: Tensor, lengths_B: Tensor) -> Tensor:
    """Return the sum of each row's tokens: [N] -> [B]. An empty row sums to 0."""
    _check(values_N, lengths_B)
    if values_N.numel() == 0:
        return values_N.new_zeros(lengths_B.numel())
    return torch.segment_reduce(values_N, "sum", lengths=lengths_B, unsafe=True)


def mean_rows(values_N: Tensor, lengths_B: Tensor) -> Tensor:
    """Return the mean of each row's tokens: [N] -> [B]. An empty row has mean 0."""
    return sum_rows(values_N, lengths_B) / lengths_B.clamp(min=1)


def repeat_to_tokens(values_B: Tensor, lengths_B: Tensor, count: int | None = None) -> Tensor:
    """Return each row's value on each of its tokens: [B] -> [N]. Without `count`, it waits for the GPU."""
    return torch.repeat_interleave(values_B, lengths_B, output_size=count)


def places(lengths_B: Tensor) -> Tensor:
    """Return each token's position in its row, from 0: [B] -> [N]."""
    starts_N = repeat_to_tokens(lengths_B.cumsum(0) - lengths_B, lengths_B)
    return torch.arange(starts_N.numel(), device=lengths_B.device) - starts_N


def last_tokens(lengths_B: Tensor) -> Tensor:
    """Return the flat index of each row's last token. Rows must not be empty."""
    return lengths_B.cumsum(0) - 1


def to_padded(values_N: Tensor, lengths_B: Tensor, fill: float = 0.0) -> Tensor:
    """Return flat tokens as [B, T], padded on the right."""
    _check(values_N, lengths_B)
    width = int(lengths_B.max()) if lengths_B.numel() else 0
    mask_BT = torch.arange(width, device=lengths_B.device) < lengths_B[:, None]
    padded_BT = values_N.new_full(mask_BT.shape, fill)
    return padded_BT.masked_scatter(mask_BT, values_N)


def from_padded(values_BT: Tensor, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Return the marked tokens of a padded tensor as (flat tokens [N], lengths [B]). Padding may be on either side."""
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

    Rows that must stay together in a micro-batch (a pair, the ranked answers of a prompt) share a number in `item_B`.
    The rows of an item are adjacent. By default each row is an item.
    """

    lengths_B: Tensor
    rows: Mapping[str, Tensor] = field(default_factory=dict)
    tokens: Mapping[str, Tensor] = field(default_factory=dict)
    item_B: Tensor | None = None
    host: Ragged | None = None
    """The same rows in host memory, if these are on a device, to read them without waiting for it."""

    def __post_init__(self) -> None:
        # reading lengths on a device would wait for it, and they were checked before they were moved
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
        """Return the same rows with row columns added or replaced."""
        return replace(self, rows={**self.rows, **columns})

    def with_tokens(self, **columns: Tensor) -> Ragged:
        """Return the same rows with token columns added or replaced."""
        return replace(self, tokens={**self.tokens, **columns})

    def select(self, index_R: Tensor) -> Ragged:
        """Return some rows in the given order, with all columns."""
        index_R = index_R.to(self.lengths_B.device)
        if index_R.dtype == torch.bool:
            index_R = index_R.nonzero().squeeze(1)
        lengths_R = self.lengths_B[index_R]
        starts_R = (self.lengths_B.cumsum(0) - self.lengths_B)[index_R]
        at_N = repeat_to_tokens(starts_R, lengths_R) + places(lengths_R)
        return Ragged(
            lengths_B=lengths_R,
            rows={name: column[index_R] for name, column in self.rows.items()},
            tokens={name: column[at_N] for name, column in self.tokens.items()},
            item_B=None if self.item_B is None else self.item_B[index_R],
        )

    def tokens_in(self, part: slice) -> Ragged:
        """Return adjacent tokens as one row with only token columns."""
        tokens = {name: column[part] for name, column in self.tokens.items()}
        return Ragged(torch.tensor([part.stop - part.start]), tokens=tokens)

    def overlaid(self, part: Ragged, chosen_B: Tensor) -> Ragged:
        """Return these rows with the new columns of `part` (the chosen rows), and 0 on all other rows."""
        chosen_N = self.repeat_to_tokens(chosen_B)
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
        """Return the sum of each row's tokens."""
        return sum_rows(values_N, self.lengths_B)

    def mean_rows(self, values_N: Tensor) -> Tensor:
        """Return the mean of each row's tokens."""
        return mean_rows(values_N, self.lengths_B)

    def repeat_to_tokens(self, values_B: Tensor) -> Tensor:
        """Return each row's value on each of its tokens."""
        return repeat_to_tokens(
            values_B, self.lengths_B, next((column.numel() for column in self.tokens.values()), None)
        )


def sequence_sum(lengths_B: Tensor, kept_B: Tensor) -> Tensor:
    """Return 1 / B: the sum over a sequence's tokens, then the mean over sequences."""
    return repeat_to_tokens(kept_B / kept_B.sum().clamp(min=1), lengths_B)


def sequence_mean(lengths_B: Tensor, kept_B: Tensor) -> Tensor:
    """Return 1 / (B |o_i|): the mean over a sequence's tokens, then over sequences."""
    return repeat_to_tokens(kept_B / (lengths_B.clamp(min=1) * kept_B.sum().clamp(min=1)), lengths_B)


def token_mean(lengths_B: Tensor, kept_B: Tensor) -> Tensor:
    """Return 1 / sum_i |o_i|: the mean over all tokens of the step."""
    return repeat_to_tokens(kept_B / (lengths_B * kept_B).sum().clamp(min=1), lengths_B)


def fixed_length(lengths_B: Tensor, kept_B: Tensor, max_length: int) -> Tensor:
    """Return 1 / (B L_max): the sum divided by a constant (Dr. GRPO, Liu 2025)."""
    return repeat_to_tokens(kept_B / (kept_B.sum().clamp(min=1) * max_length), lengths_B)


def kept_rows(lengths_B: Tensor, dropped_B: Tensor | None, like: Tensor) -> Tensor:
    """Return 1.0 for rows that count and 0.0 for dropped or empty rows, in `like`'s dtype."""
    counts_B = lengths_B > 0 if dropped_B is None else (lengths_B > 0) & ~dropped_B.bool()
    return counts_B.to(torch.promote_types(like.dtype, torch.float32))


def per_item(item_B: Tensor) -> Tensor:
    """Return 1 / items on each row in double precision, for the mean over items of any number of rows."""
    count = max(torch.unique(item_B).numel(), 1)
    return torch.full(item_B.shape, 1 / count, dtype=torch.float64, device=item_B.device)


_GOLDEN = -7046029254386353131
_FIRST = -4658895280553007687
_SECOND = -7723592293110705685
_LOW_63 = 2**63 - 1


def row_keys(seed: int, names: Sequence[str]) -> Tensor:
    """Return one 64-bit key for each named row [R]. It is the same on every machine."""
    digests = [hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest() for name in names]
    return torch.tensor([int.from_bytes(digest, "little", signed=True) for digest in digests], dtype=torch.long)


def uniform(keys_R: Tensor, count: int, first_R: Tensor | None = None) -> Tensor:
    """Return a number in [0, 1) for each row at `count` positions, from `first_R` or 0 on [R, count]."""
    place_RT = torch.arange(count, device=keys_R.device) + (0 if first_R is None else first_R[:, None])
    return uniform_at(keys_R[:, None], place_RT)


def uniform_at(keys: Tensor, places: Tensor) -> Tensor:
    """Return a number in [0, 1) for each pair of a row's key and a position."""
    mixed = _mix(keys + ((places + 1) * _GOLDEN & _LOW_63))
    return _shift(mixed, 11).to(torch.float64) * 2.0**-53


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 30)) * _FIRST
    x = (x ^ _shift(x, 27)) * _SECOND
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Return a logical right shift. torch's own shift keeps the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
