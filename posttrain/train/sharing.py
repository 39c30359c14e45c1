"""Share the rows of a step among processes so that they finish together.

Processes run their passes side by side, and each waits for the slowest at every layer. So a step takes

    sum over rounds of the most work that a process has in that round

where a round is one pass of every process. The rows are dealt so that this sum is small: the largest first, each to the
process with the least work so far. Rows with the same prompt stay together where that is less work, because a pass
computes their prompt once. One process gets its passes as `micro_batches` cuts them.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from posttrain.rollout import TokenRow
from posttrain.text.packing import buckets, micro_batches

PAIRS = 6
"""A layer's products for a token cost as much as attention between PAIRS * width pairs of tokens, without biases."""

Rounds = list[list[list[int]]]
"""For each round and process, the numbers of its rows; empty if there is nothing left for it."""


@dataclass(frozen=True)
class _Piece:
    """Some adjacent items with the same prompt."""

    rows: tuple[int, ...]
    group: int
    prompt: int
    """Tokens of the prompt."""
    work: float
    """The work of its rows, with one prompt."""
    tokens: int
    """Tokens of its rows, each with its prompt."""


@dataclass
class _Pass:
    """The rows of one forward and backward pass."""

    rows: list[int] = field(default_factory=list)
    groups: set[int] = field(default_factory=set)
    work: float = 0.0
    tokens: int = 0

    def add(self, piece: _Piece) -> None:
        self.work += piece.work - (piece.prompt if piece.group in self.groups else 0)
        self.groups.add(piece.group)
        self.tokens += piece.tokens
        self.rows.extend(piece.rows)


def share_out(rows: Sequence[TokenRow], items: Sequence[int], budget: int, processes: int, width: float) -> Rounds:
    """Return the rows of each process in each round. Every process gets the same answer.

    `items`: rows of one item stay together. `budget`: the most tokens of a pass. `width`: that of the model.
    """
    if processes == 1:
        return [[cut] for cut in micro_batches([len(row) for row in rows], items, budget)]
    groups = [_items_of(group, items) for group in _groups(rows, items)]
    choices = [_dealt(_pieces(rows, groups, size, budget, width), budget, processes) for size in _sizes(groups)]
    return min(choices, key=lambda rounds: slowest(rows, rounds, width)) if choices else []


def work_of(rows: Sequence[TokenRow], width: float, *, padded: bool = False) -> float:
    """Return the work of a pass in tokens, with attention's pairs converted to tokens of equal cost.

    `padded`: attention pads the rows of a bucket to the longest, as it does on a CPU.
    """
    before: Sequence[int] | None = None
    tokens = 0
    for row in rows:
        tokens += len(row.rest) + (0 if before is not None and row.prompt == before else len(row.prompt))
        before = row.prompt
    sizes = [len(row) for row in rows]
    if padded:
        sizes = [max(sizes[i] for i in bucket) for bucket in buckets(sizes) for _ in bucket]
    return tokens + sum(size**2 / 2 for size in sizes) / (PAIRS * width)


def slowest(rows: Sequence[TokenRow], rounds: Rounds, width: float, *, padded: bool = False) -> float:
    """Return the work that a step waits for: in each round, the work of the busiest process."""
    return sum(max(work_of([rows[i] for i in part], width, padded=padded) for part in parts) for parts in rounds)


def useful_share(rows: Sequence[TokenRow], rounds: Rounds, width: float, *, padded: bool = False) -> float:
    """Return the useful share of the processes' time: 1 if all have equal work and repeat nothing.

    The step's own work is that of one pass over all rows without padding.
    """
    waits = len(rounds[0]) * slowest(rows, rounds, width, padded=padded) if rounds else 0.0
    return work_of(rows, width) / waits if waits else 1.0


@dataclass
class Sharing:
    """How evenly the steps of a run were shared."""

    work: float = 0.0
    waits: float = 0.0
    steps: int = 0
    idle: int = 0
    """Steps in which a process had no rows."""

    def add(self, rows: Sequence[TokenRow], rounds: Rounds, width: float) -> None:
        """Add a step."""
        self.work += work_of(rows, width)
        self.waits += len(rounds[0]) * slowest(rows, rounds, width)
        self.steps += 1
        self.idle += any(not any(parts[process] for parts in rounds) for process in range(len(rounds[0])))

    @property
    def useful(self) -> float:
        """The useful share of the processes' time in these steps."""
        return self.work / self.waits if self.waits else 1.0

    def described(self, processes: int) -> str:
        """Return '77 % of the time that 2 processes spent in steps was useful'."""
        said = f"{100 * self.useful:.0f} % of the time that {processes} processes spent in steps was useful"
        return said + (f"; in {self.idle} of {self.steps} steps some had no row" if self.idle else "")


def own_parts(rounds: Rounds, process: int) -> Iterator[tuple[list[int], bool]]:
    """Yield this process's rows in each round, and a flag: True if they count.

    All processes run the same number of passes, so that none waits in vain. One without rows repeats the round's
    smallest part, which then does not count.
    """
    for parts in rounds:
        local_rows = parts[process]
        yield (local_rows, True) if local_rows else (min(filter(None, parts), key=len), False)


def _groups(rows: Sequence[TokenRow], items: Sequence[int]) -> list[list[int]]:
    """Return the numbers of adjacent rows with the same prompt. Rows of an item stay together."""
    groups: list[list[int]] = []
    for i, row in enumerate(rows):
        if groups and (items[i] == items[i - 1] or row.prompt == rows[i - 1].prompt):
            groups[-1].append(i)
        else:
            groups.append([i])
    return groups


def _items_of(group: Iterable[int], items: Sequence[int]) -> list[list[int]]:
    return [list(places) for _, places in groupby(group, key=lambda i: items[i])]


def _sizes(groups: Sequence[Sequence[object]]) -> list[int]:
    """Return the most items of a piece to try: whole groups, halves, quarters and so on, and single items."""
    most = max((len(group) for group in groups), default=0)
    return [size for halved in range(most.bit_length()) if (size := -(-most // 2**halved))]


def _pieces(
    rows: Sequence[TokenRow], groups: Sequence[list[list[int]]], size: int, budget: int, width: float
) -> list[_Piece]:
    """Return the groups in pieces of at most `size` items and `budget` tokens."""
    pieces = []
    for number, group in enumerate(groups):
        for start in range(0, len(group), size):
            some = [i for item in group[start : start + size] for i in item]
            item_of = [place for place, item in enumerate(group[start : start + size]) for _ in item]
            for cut in micro_batches([len(rows[i]) for i in some], item_of, budget):
                piece_rows = [rows[some[place]] for place in cut]
                tokens = sum(map(len, piece_rows))
                numbers = tuple(some[place] for place in cut)
                pieces.append(_Piece(numbers, number, len(piece_rows[0].prompt), work_of(piece_rows, width), tokens))
    return pieces


def _dealt(pieces: list[_Piece], budget: int, processes: int) -> Rounds:
    """Return the pieces dealt, the largest first, in as few rounds as they fit into."""
    pieces = sorted(pieces, key=lambda piece: (-piece.work, piece.rows))
    rounds = max(-(-sum(piece.tokens for piece in pieces) // (processes * budget)), 1)
    while (passes := _filled(pieces, budget, processes * rounds)) is None:
        rounds += 1
    passes.sort(key=lambda one: -one.work)
    parts = [sorted(one.rows) for one in passes]
    dealt = [parts[start : start + processes] for start in range(0, len(parts), processes)]
    return [part[::-1] if number % 2 else part for number, part in enumerate(dealt)]


def _filled(pieces: Sequence[_Piece], budget: int, count: int) -> list[_Pass] | None:
    """Return the pieces in so many passes; None if they do not fit."""
    passes = [_Pass() for _ in range(count)]
    waiting = [(0.0, number) for number in range(count)]
    for piece in pieces:
        full = []
        while waiting and passes[waiting[0][1]].rows and passes[waiting[0][1]].tokens + piece.tokens > budget:
            full.append(heapq.heappop(waiting))
        if not waiting:
            return None
        _, number = heapq.heappop(waiting)
        passes[number].add(piece)
        for entry in (*full, (passes[number].work, number)):
            heapq.heappush(waiting, entry)
    return passes
