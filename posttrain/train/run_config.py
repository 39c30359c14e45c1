"""The settings of a named run of params.yaml: a row of an algorithm table with some of its settings replaced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from posttrain.algorithms.objective import Row
from posttrain.errors import ParamsError
from posttrain.params import PARAMS_FILE, Params, at, check, did_you_mean, read


@dataclass(frozen=True)
class Algorithm:
    """A row that a run may name, and what types such a run."""

    row: Row
    model: type[Params]


def load_run(section: str, algorithms: Mapping[str, Algorithm]) -> Any:
    """The run's own settings laid on those of its algorithm's row, typed and checked."""
    own = at(read(), section)
    if not isinstance(own, dict) or not isinstance(own.get("algorithm"), str):
        fix = f"Give it an algorithm, one of: {', '.join(algorithms)}"
        raise ParamsError(what=f"{section} names no algorithm", where=PARAMS_FILE, fix=fix)
    if own["algorithm"] not in algorithms:
        fix = _hint(own["algorithm"], algorithms)
        what = f"{section}.algorithm = '{own['algorithm'][:80]}' is unknown"
        raise ParamsError(what=what, where=PARAMS_FILE, fix=fix)
    algorithm = algorithms[own["algorithm"]]
    return check(algorithm.model, algorithm.row.laid(own), where=section)


def _hint(name: str, algorithms: Mapping[str, Algorithm]) -> str:
    """The section that knows the algorithm, or the nearest name."""
    from posttrain.algorithms.policy_rows import POLICY_ROWS
    from posttrain.algorithms.preference_rows import PREFERENCE_ROWS
    from posttrain.algorithms.sampled_rows import SAMPLED_ROWS
    from posttrain.algorithms.supervised import DISTILL_ROWS

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
