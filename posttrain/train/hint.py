"""The hint for an unknown algorithm: a module of its own, since only an error imports it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from posttrain.algorithms.policy_rows import POLICY_ROWS
from posttrain.algorithms.preference_rows import PREFERENCE_ROWS
from posttrain.algorithms.sampled_rows import SAMPLED_ROWS
from posttrain.algorithms.supervised import DISTILL_ROWS
from posttrain.params.params import did_you_mean


def hint(name: str, algorithms: Collection[str]) -> str:
    """Return the section that has the algorithm, or the nearest name."""
    families: dict[str, Mapping[str, Any]] = {
        "preference": PREFERENCE_ROWS,
        "online": {**POLICY_ROWS, **SAMPLED_ROWS},
        "distill": DISTILL_ROWS,
    }
    for section, rows in families.items():
        if name in rows:
            also = f", or here '{near}'" if (near := f"online_{name}") in algorithms else ""
            return f"It is an algorithm of {section}.runs{also}"
    return did_you_mean(name, list(algorithms))
