"""Keys and values of decoding rows' own tokens: a column for each step, as many as are needed."""

from __future__ import annotations

from torch import Tensor

FIRST = 64
"""Columns that memory is taken for at first; it doubles from there."""


class Columns:
    """One layer's keys and values [2, R, K, C, D]; at `limit` columns (the window) the oldest is written over."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._memory: Tensor | None = None

    @property
    def size(self) -> int:
        """Columns that there is memory for."""
        return 0 if self._memory is None else self._memory.shape[3]

    def write(self, step: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keep a step's keys and values [R, K, 1, D]; what is kept of them all, [R K, used, D]."""
        rows, heads, _, width = key.shape
        memory = self._memory
        if memory is None:
            self._memory = memory = key.new_empty(2, rows, heads, min(FIRST, self._limit), width)
        if step >= memory.shape[3] and memory.shape[3] < self._limit:
            wider = key.new_empty(2, rows, heads, min(2 * memory.shape[3], self._limit), width)
            wider[:, :, :, : memory.shape[3]] = memory
            self._memory = memory = wider
        size = memory.shape[3]
        used, place = min(step + 1, size), step % size
        for part, new in zip(memory, (key, value), strict=True):
            part[:, :, place] = new[:, :, 0]
        return memory[0].flatten(0, 1)[:, :used], memory[1].flatten(0, 1)[:, :used]

    def keep(self, index_R: Tensor) -> None:
        """Drop the other rows."""
        if self._memory is not None:
            self._memory = self._memory[:, index_R]

    def join(self, rows: int) -> None:
        """Add rows that have written nothing: zeros, since what is masked must still be finite."""
        if self._memory is not None:
            old = self._memory
            self._memory = old.new_zeros(2, old.shape[1] + rows, *old.shape[2:])
            self._memory[:, : old.shape[1]] = old

    def forget(self, steps: int) -> None:
        """Steps are counted from a later one from here on."""
        if self._memory is not None:
            self._memory = self._memory.roll(-steps, 3)
