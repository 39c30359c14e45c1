"""Keys and values of decoding rows' own tokens: a column for each step, as many as are needed."""

from __future__ import annotations

import torch
from torch import Tensor

FIRST = 64
"""Columns that memory is taken for at first; it doubles from there."""


class Columns:
    """One layer's keys and values [R, K, C, D]; at `limit` columns (the window) the oldest is written over."""

    def __init__(self, limit: int) -> None:
        self._limit, self.size = limit, 0
        """Columns that there is memory for."""
        self._parts: list[Tensor] = []

    def write(self, step: int, key: Tensor, value: Tensor) -> list[Tensor]:
        """Keep a step's keys and values [R, K, 1, D]; what is kept of both, [R K, used, D]."""
        if not self._parts:
            self._parts, self.size = [key[:, :, :0], value[:, :, :0]], 0
        if step >= self.size and self.size < self._limit:
            self.size = min(max(2 * self.size, FIRST), self._limit)
            self._parts = [_wider(part, self.size) for part in self._parts]
        used, place = min(step + 1, self.size), step % self.size
        seen = []
        for part, new in zip(self._parts, (key, value), strict=True):
            part[:, :, place] = new[:, :, 0]
            seen.append(part.flatten(0, 1)[:, :used])
        return seen

    def put(self, place: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        """The same with the column as a tensor [1], nothing made and all columns given: a GPU can replay it."""
        for part, new in zip(self._parts, (key, value), strict=True):
            part.index_copy_(2, place, new)
        return [part.flatten(0, 1) for part in self._parts]

    def keep(self, index_R: Tensor) -> None:
        """Drop the other rows."""
        self._parts = [part[index_R] for part in self._parts]

    def join(self, rows: int) -> None:
        """Add rows that have written nothing: zeros, since what is masked must still be finite."""
        self._parts = [torch.cat([part, part.new_zeros(rows, *part.shape[1:])]) for part in self._parts]

    def forget(self, steps: int) -> None:
        """Steps are counted from a later one from here on."""
        self._parts = [part.roll(-steps, 2) for part in self._parts]


def _wider(part: Tensor, size: int) -> Tensor:
    """Memory for more columns, with what there is in the first of them; what is never seen must still be finite."""
    rows, heads, used, width = part.shape
    wider = part.new_zeros(rows, heads, size, width)
    wider[:, :, :used] = part
    return wider
