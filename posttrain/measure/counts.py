"""Counts that a stage records in addition to its time, e.g. the requests and cost of a judge."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

COUNTS: Final[Counter[str]] = Counter()
"""The counts of this process and of earlier processes of the same run."""


def count(more: Mapping[str, float]) -> None:
    """Add to the counts by name."""
    for name, value in more.items():
        COUNTS[name] += value  # type: ignore[assignment]


@contextmanager
def seconds_of(name: str) -> Iterator[None]:
    """Add the seconds of a block to a count."""
    start = time.perf_counter()
    try:
        yield
    finally:
        count({name: time.perf_counter() - start})


def counts() -> dict[str, float]:
    """Return the current counts, rounded for a file."""
    return {name: round(value, 6) for name, value in COUNTS.items()}
