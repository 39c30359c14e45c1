"""The settings of a named run in params.yaml: those of its algorithm, with some replaced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from posttrain.algorithms.objective import AlgorithmRow
from posttrain.errors import ParamsError
from posttrain.params.params import PARAMS_FILE, Params, at, check, read


@dataclass(frozen=True)
class Algorithm:
    """A row that a run may name, and the model that types such a run."""

    row: AlgorithmRow
    model: type[Params]


def load_run(section: str, algorithms: Mapping[str, Algorithm]) -> Any:
    """Return the settings of the run's algorithm with its own in their place, typed and checked."""
    return typed_run(at(read(), section), section, algorithms)


def typed_run(own: Any, section: str, algorithms: Mapping[str, Algorithm]) -> Any:
    """Return the same of what params.yaml has of the run."""
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
