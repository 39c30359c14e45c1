"""The settings of a named run of params.yaml: a row of an algorithm table with some of its settings replaced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from posttrain.algorithms.objective import AlgorithmRow
from posttrain.errors import ParamsError
from posttrain.params import PARAMS_FILE, Params, at, check, read


@dataclass(frozen=True)
class Algorithm:
    """A row that a run may name, and what types such a run."""

    row: AlgorithmRow
    model: type[Params]


def load_run(section: str, algorithms: Mapping[str, Algorithm]) -> Any:
    """The run's own settings laid on those of its algorithm's row, typed and checked."""
    own = at(read(), section)
    if not isinstance(own, dict) or not isinstance(own.get("algorithm"), str):
        fix = f"Give it an algorithm, one of: {', '.join(algorithms)}"
        raise ParamsError(what=f"{section} names no algorithm", where=PARAMS_FILE, fix=fix)
    if own["algorithm"] not in algorithms:
        from posttrain.train.hint import hint

        fix = hint(own["algorithm"], algorithms)
        what = f"{section}.algorithm = '{own['algorithm'][:80]}' is unknown"
        raise ParamsError(what=what, where=PARAMS_FILE, fix=fix)
    algorithm = algorithms[own["algorithm"]]
    return check(algorithm.model, algorithm.row.merged(own), where=section)
