"""The time of a call: by CUDA events on a GPU, by a plain clock elsewhere."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

WARM, REPEATS = 3, 15
CACHE_BYTES = 2**28
"""More than a GPU's L2 cache holds. It is overwritten before each call, since a step's tensors are not in it."""
LEAST_MS = 1e-6
"""What a clock that is too coarse shows."""


def milliseconds(call: Callable[[], object], device: str, *, repeats: int = REPEATS) -> float:
    """Return the median time of a call, after some that do not count."""
    for _ in range(WARM if device == "cuda" else 1):
        call()
    times = _by_events(call, repeats) if device == "cuda" else _by_clock(call, repeats)
    return max(statistics.median(times), LEAST_MS)


def elapsed(call: Callable[[], object], device: str, count: int = 1) -> float:
    """Return the milliseconds of a call on the wall, in a row of `count` calls with all work done."""
    done(device)
    start = time.perf_counter()
    for _ in range(count):
        call()
    done(device)
    return max((time.perf_counter() - start) * 1e3 / count, LEAST_MS)


def done(device: str) -> None:
    """Wait for the device's work."""
    if device == "cuda":
        torch.cuda.synchronize()


def _by_events(call: Callable[[], object], repeats: int) -> list[float]:
    cache = torch.empty(CACHE_BYTES, dtype=torch.uint8, device="cuda")
    pairs = []
    for _ in range(repeats):
        cache.zero_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        call()
        end.record()
        pairs.append((start, end))
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in pairs]


def _by_clock(call: Callable[[], object], repeats: int) -> list[float]:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e3)
    return times
