"""A model of the duration of FlashAttention 2's deterministic backward pass, and cuts of a batch that reduce it.

A call has `ceil(SMs / (rows heads))` blocks per row and head. A block takes its share of the row's blocks of keys one
after the other. With more rows and heads than SMs, one SM so walks a whole row, and the call lasts as long as its
longest row. A call of the longest rows alone gives each of them several SMs.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import pairwise

TILE = 128
"""Queries and keys of a block."""
POINTS = (1, 2, 3, 4, 6, 8, 9, 12, 16, 24, 32)
"""Number of the longest rows that a call may end with."""
SIMULATED = 4096
"""Maximum number of blocks that are scheduled one by one. Larger numbers are spread evenly enough."""
LEAST_GAIN = 0.1
"""The share of the time that a cut must save, since it copies queries, keys and values."""

Row = tuple[int, int]
"""Queries and keys of a row. The last query sees all keys, the query before it one key less."""


def cuts(rows: Sequence[Row], heads: int, sms: int) -> list[int]:
    """Return the number of rows in each call, with the longest rows first. One number: do not cut."""
    points = [point for point in POINTS if point < len(rows)]
    known: dict[Row, float] = {}

    def length(first: int, end: int) -> float:
        if (first, end) not in known:
            known[first, end] = makespan(rows[first:end], heads, sms)
        return known[first, end]

    whole = length(0, len(rows))
    ends: list[tuple[int, ...]] = [(0, point, len(rows)) for point in points]
    ends += [(0, first, second, len(rows)) for first in points for second in points if first < second]
    best = min(ends, key=lambda one: sum(length(*pair) for pair in pairwise(one)), default=(0, len(rows)))
    if sum(length(*pair) for pair in pairwise(best)) > (1 - LEAST_GAIN) * whole:
        return [len(rows)]
    return [end - first for first, end in pairwise(best)]


def makespan(rows: Sequence[Row], heads: int, sms: int) -> float:
    """Return the duration of a deterministic call, in products of two tiles."""
    count = -(-sms // (len(rows) * heads))
    return _scheduled([_shares(row, count) for row in rows], heads, sms)


def free_makespan(rows: Sequence[Row], heads: int, sms: int) -> float:
    """Return the duration for the kernel that adds in any order: a block for each row, head and block of keys."""
    return _scheduled([_shares(row, _tiles(row[1])) for row in rows], heads, sms)


def _tiles(tokens: int) -> int:
    return -(-tokens // TILE)


def _shares(row: Row, count: int) -> list[int]:
    """Return the products of each of a row's blocks: block i takes the keys i, i + count, ..."""
    queries, keys = _tiles(row[0]), _tiles(row[1])
    shares = [0] * count
    for place in range(keys):  # the keys of the prompt are seen by all queries
        shares[place % count] += min(queries, keys - place)
    return [share for share in shares if share]


def _scheduled(rows: Sequence[Sequence[int]], heads: int, sms: int) -> float:
    """Return when the last SM ends, if each takes the next block once it is free, head after head."""
    blocks = [share for shares in rows for share in shares]
    if len(blocks) * heads > SIMULATED:
        return sum(blocks) * heads / sms + max(blocks)
    free = [0] * sms
    for share in blocks * heads:
        heapq.heapreplace(free, free[0] + share)
    return float(max(free))
