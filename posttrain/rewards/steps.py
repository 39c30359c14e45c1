"""Split a completion's text into steps, and find the token at which each step ends."""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Literal

from posttrain.rollout import Rollout
from posttrain.text.chat import ChatText

Reduce = Literal["min", "mean", "sum", "last"]
REDUCE: Final[Mapping[Reduce, Callable[[Sequence[float]], float]]] = {
    "min": min,
    "mean": statistics.fmean,
    "sum": sum,
    "last": lambda scores: scores[-1],
}


def steps_of(text: str, separator: str) -> Iterator[str]:
    """Yield a text up to the end of each step that is not blank, without the separator after it."""
    end = 0
    for step in text.split(separator):
        end += len(step)
        if step.strip():
            yield text[:end]
        end += len(separator)


def step_ends(rollout: Rollout, parts: Sequence[str], separator: str, text: ChatText) -> list[int]:
    """Return the number of sampled tokens up to the end of each step of the last turn, including its separator."""
    row, ends = rollout.row, rollout.row.turn_ends
    before = ends[-2] if len(ends) > 1 else 0
    ids = [row.rest[place] for place in row.trained[before:]]

    def tokens(end: int) -> int:
        return bisect_left(range(len(ids)), end, key=lambda index: len(text.decode(ids[: index + 1]))) + 1

    last = len(parts) - 1
    return [
        before + (len(ids) if index == last else min(tokens(len(part) + len(separator)), len(ids)))
        for index, part in enumerate(parts)
    ]
