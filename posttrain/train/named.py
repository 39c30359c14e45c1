"""Named runs of params.yaml: a row of an algorithm table with some of its knobs replaced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from posttrain.errors import ParamsError
from posttrain.params import PARAMS_FILE, Params, at, check, did_you_mean, read
from posttrain.workspace import named_model_path


class Row(Protocol):
    """What every algorithm table holds."""

    def laid(self, over: Mapping[str, Any]) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Algorithm:
    """A row that a run may name, and what types such a run."""

    row: Row
    model: type[Params]


def load_run(section: str, algorithms: Mapping[str, Algorithm]) -> Any:
    """The run's own settings laid on those of its algorithm's row, typed and checked."""
    own = at(read(), section)
    if not isinstance(own, dict) or not isinstance(own.get("algorithm"), str):
        mend = f"Give it an algorithm, one of: {', '.join(algorithms)}"
        raise ParamsError(what=f"{section} names no algorithm", where=PARAMS_FILE, mend=mend)
    if own["algorithm"] not in algorithms:
        mend = did_you_mean(own["algorithm"], list(algorithms))
        what = f"{section}.algorithm = '{own['algorithm'][:80]}' is unknown"
        raise ParamsError(what=what, where=PARAMS_FILE, mend=mend)
    algorithm = algorithms[own["algorithm"]]
    return check(algorithm.model, algorithm.row.laid(own), where=section)


def start_path(name: str, section: str, key: str = "start") -> Path:
    """The folder of the model that a run starts from, or learns from."""
    return named_model_path(name, f"{section}.{key}")
