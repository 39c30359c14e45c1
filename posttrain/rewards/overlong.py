"""DAPO's soft overlong punishment."""

from __future__ import annotations

from collections.abc import Sequence


def soft_overlong(lengths: Sequence[int], longest: int, cache: int) -> list[float]:
    """0 up to longest - cache, then linear down to -1 at longest, -1 beyond (DAPO, Yu 2025)."""
    return [-min(max((length - (longest - cache)) / cache, 0.0), 1.0) for length in lengths]
