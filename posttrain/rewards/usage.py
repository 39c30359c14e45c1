"""Count the requests, tokens and cost of the verdicts behind a result, including cached verdicts.

A repeated run therefore reports the same numbers. timings/ shows what was requested anew and what came from the cache.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

Usage = Counter[str]
"""`requests`: answered requests; `tokens_in`, `tokens_out`: their tokens; `cost`: if a price is known."""
USED: Final[Usage] = Counter()
"""The usage of this process."""
NAMES: Final = ("judge_requests", "judge_tokens_in", "judge_tokens_out", "judge_cost")
"""The names of its metrics."""


def judge_metrics(before: Mapping[str, float] | None = None) -> dict[str, float]:
    """Return the usage since `before` as metrics; empty if no judge was asked."""
    used = {f"judge_{name}": float(value - (before or {}).get(name, 0)) for name, value in USED.items()}
    return used if any(used.values()) else {}


def judge_totals(rounds: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the sums of these metrics over the rounds of a run."""
    totals = Usage()
    for metrics in rounds:
        totals.update({name: value for name, value in metrics.items() if name in NAMES})
    return dict(totals)
