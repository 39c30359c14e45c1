"""Pack rows of token ids into one sequence without padding. A prompt shared by several rows is stored once.

A row is a prompt, the rest, and a mask of the trained tokens. The packed sequence contains each prompt once and the
rest of each row. A row attends only to its own tokens. Rows of similar length are gathered into buckets and padded on
the right, where the causal mask hides the padding. Each packed token takes its output from one bucket.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from posttrain.rollout import Ids, Kept, TokenRow

Span = tuple[int, int, int, int]

BUCKET_WASTE = 1.25
"""Rows share an attention bucket if the longest is at most this much longer than the shortest."""


@dataclass(frozen=True)
class PackedRows:
    """B rows packed into one sequence of N tokens, M of them scored: the input of a forward pass."""

    ids_N: torch.Tensor
    positions_N: torch.Tensor
    source_M: torch.Tensor
    """The packed token whose hidden state predicts each trained token."""
    target_M: torch.Tensor
    lengths_B: torch.Tensor
    last_B: torch.Tensor
    """The packed position of each row's last token."""
    spans: tuple[Span, ...]
    """For each row: start and length of its prompt, start and length of the rest."""
    kept: Kept | None = None
    """The tokens that each trained token was drawn from. They stay in host memory."""
    experts_NLK: torch.Tensor | None = None
    """The experts that a mixture's routers must choose; -1: their own choice."""

    @cached_property
    def gathered(self) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
        """Return an [S, T] index into the packed tokens per attention bucket, and each token's place in the outputs.

        Buckets contain rows of similar length. Their outputs are flattened one after the other.
        """
        take = torch.empty(self.ids_N.numel(), dtype=torch.long)
        gathers: list[torch.Tensor] = []
        offset = 0
        for bucket in buckets([length + count for _, length, _, count in self.spans]):
            width = max(self.spans[row][1] + self.spans[row][3] for row in bucket)
            gather = torch.zeros(len(bucket), width, dtype=torch.long)
            for place, row in enumerate(bucket):
                start, length, first, count = self.spans[row]
                gather[place, :length] = torch.arange(start, start + length)
                gather[place, length : length + count] = torch.arange(first, first + count)
                base = offset + place * width
                if self._owns_prompt(row):
                    take[start : start + length] = torch.arange(base, base + length)
                take[first : first + count] = torch.arange(base + length, base + length + count)
            gathers.append(gather)
            offset += gather.numel()
        return tuple(sent(part, self.ids_N.device) for part in gathers), sent(take, self.ids_N.device)

    def _owns_prompt(self, row: int) -> bool:
        """Tell whether a row is the first one of its prompt."""
        return row == 0 or self.spans[row][:2] != self.spans[row - 1][:2]

    def rows_per_token(self) -> torch.Tensor:
        """Return the number of rows of each packed token [N]: more than 1 in a shared prompt."""
        count_N = torch.zeros(self.ids_N.numel())
        for start, length, first, count in self.spans:
            count_N[start : start + length] += 1
            count_N[first : first + count] += 1
        return count_N

    def row_masks(self) -> list[torch.Tensor]:
        """Return 1 at each row's tokens and 0 at padding, [S, T] for each attention bucket."""
        lengths = [length + count for _, length, _, count in self.spans]
        sizes = [torch.tensor([lengths[row] for row in bucket]) for bucket in buckets(lengths)]
        return [(torch.arange(int(part.max())) < part[:, None]).float() for part in sizes]

    def to(self, device: torch.device) -> PackedRows:
        """Return the same batch on a device, copied asynchronously."""
        if device.type == "cpu":
            return self
        moved: dict[str, Any] = {
            name: sent(value, device) for name, value in vars(self).items() if isinstance(value, torch.Tensor)
        }
        return replace(self, **moved)


def sent(part: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return the tensor on a device, copied asynchronously. A GPU fetches pinned memory by itself."""
    if device.type == "cuda" and part.device.type == "cpu":
        part = part.pin_memory()
    return part.to(device, non_blocking=True)


def pack(rows: Sequence[TokenRow]) -> PackedRows:
    """Return rows as one batch. Adjacent equal prompts are stored once."""
    ids: list[int] = []
    positions: list[int] = []
    spans: list[Span] = []
    source: list[int] = []
    target: list[int] = []
    lengths: list[int] = []
    before: Ids | None = None
    start = 0
    for row in rows:
        prompt, rest = row.prompt, row.rest
        if before is None or prompt != before:
            start, before = len(ids), prompt
            ids.extend(prompt)
            positions.extend(range(len(prompt)))
        first = len(ids)
        ids.extend(rest)
        positions.extend(range(len(prompt), len(prompt) + len(rest)))
        spans.append((start, len(prompt), first, len(rest)))
        trained = row.trained
        source.extend(first + place - 1 if place else start + len(prompt) - 1 for place in trained)
        target.extend(rest[place] for place in trained)
        lengths.append(len(trained))
    last = [first + count - 1 if count else start + length - 1 for start, length, first, count in spans]
    return PackedRows(
        ids_N=torch.tensor(ids, dtype=torch.long),
        positions_N=torch.tensor(positions, dtype=torch.long),
        source_M=torch.tensor(source, dtype=torch.long),
        target_M=torch.tensor(target, dtype=torch.long),
        lengths_B=torch.tensor(lengths, dtype=torch.long),
        last_B=torch.tensor(last, dtype=torch.long),
        spans=tuple(spans),
        kept=kept_of(rows),
        experts_NLK=_experts(rows, spans, len(ids)),
    )


def _experts(rows: Sequence[TokenRow], spans: Sequence[Span], tokens: int) -> torch.Tensor | None:
    """Return the experts of each packed token, -1 if a row has none; None if no row has any."""
    known = [(row.experts, span) for row, span in zip(rows, spans, strict=True) if row.experts is not None]
    if not known:
        return None
    packed_NLK = known[0][0].new_full((tokens, *known[0][0].shape[1:]), -1)
    for experts_TLK, (start, length, first, count) in known:
        packed_NLK[start : start + length] = experts_TLK[:length]
        packed_NLK[first : first + count] = experts_TLK[length:]
    return packed_NLK


def joined_kept(parts: Sequence[Kept]) -> Kept:
    """Join the kept tokens of several parts."""
    return Kept(torch.cat([part.ids for part in parts]), torch.cat([part.counts for part in parts]))


def kept_of(rows: Sequence[TokenRow]) -> Kept | None:
    """Return the sets of tokens that the trained tokens were drawn from; None if no row has them."""
    if all(row.kept is None for row in rows):
        return None
    none = torch.zeros(0, dtype=torch.int32)
    return joined_kept([row.kept or Kept(none, none.new_zeros(len(row.trained))) for row in rows])


def buckets(lengths: Sequence[int]) -> list[list[int]]:
    """Return row numbers in groups, so that each group's attention has little padding."""
    order = sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))
    buckets: list[list[int]] = []
    for row in order:
        if buckets and lengths[buckets[-1][0]] <= max(lengths[row], 1) * BUCKET_WASTE:
            buckets[-1].append(row)
        else:
            buckets.append([row])
    return buckets


def micro_batches(sizes: Sequence[int], items: Sequence[int], budget: int) -> list[list[int]]:
    """Return row numbers cut into micro-batches of at most `budget` tokens, in order, without splitting items."""
    batches: list[list[int]] = []
    filled = 0
    at = 0
    while at < len(sizes):
        end = at + 1
        while end < len(sizes) and items[end] == items[at]:
            end += 1
        cost = sum(sizes[at:end])
        if batches and filled + cost <= budget:
            batches[-1].extend(range(at, end))
            filled += cost
        else:
            batches.append(list(range(at, end)))
            filled = cost
        at = end
    return batches
