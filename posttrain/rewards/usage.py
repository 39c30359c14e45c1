"""What the verdicts behind a result took: requests, tokens and cost, those of remembered verdicts too.

So a run that is repeated has the same figures; what it asked anew and what it found in the cache is in timings/.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

Usage = Counter[str]
"""`requests` that were answered, their `tokens_in` and `tokens_out`, and `cost` where a price is known."""
USED: Final[Usage] = Counter()
"""That of this process."""
NAMES: Final = ("judge_requests", "judge_tokens_in", "judge_tokens_out", "judge_cost")
"""The metrics of it."""


def judge_metrics(before: Mapping[str, float] | None = None) -> dict[str, float]:
    """Return what was used since `before`, as metrics; nothing where no judge was asked."""
    used = {f"judge_{name}": float(value - (before or {}).get(name, 0)) for name, value in USED.items()}
    return used if any(used.values()) else {}


def judge_totals(rounds: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the sums of these metrics over the rounds of a run."""
    totals = Usage()
    for metrics in rounds:
        totals.update({name: value for name, value in metrics.items() if name in NAMES})
    return dict(totals)
