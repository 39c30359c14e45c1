"""The settings of a named run in params.yaml: those of its algorithm, with some replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from posttrain.algorithms.objective import AlgorithmRow
from posttrain.errors import ParamsError
from posttrain.params.params_file import at, read
from posttrain.settings.listing import row_modules
from posttrain.settings.params import Params, check, did_you_mean
from posttrain.workspace import PARAMS_FILE


@dataclass(frozen=True)
class Algorithm:
    """A row that a run may name, and the model that types such a run."""

    row: AlgorithmRow
    model: type[Params]


class Algorithms(Mapping[str, Algorithm]):
    """The rows of tables, each with the model that types a run of it; a row is imported when it is looked up.

    Example: `Algorithms((POLICY_ROWS, lambda row: PolicyRun))`.
    """

    def __init__(self, *tables: tuple[Mapping[str, AlgorithmRow], Callable[[AlgorithmRow], type[Params]]]) -> None:
        self._tables = tables

    def __getitem__(self, name: str) -> Algorithm:
        for rows, model in self._tables:
            if name in rows:
                row = rows[name]
                return Algorithm(row, model(row))
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        return any(name in rows for rows, _ in self._tables)

    def __iter__(self) -> Iterator[str]:
        return (name for rows, _ in self._tables for name in rows)

    def __len__(self) -> int:
        return sum(len(rows) for rows, _ in self._tables)


SECTIONS = {
    "algorithms.policy": "online",
    "online.sampled": "online",
    "algorithms.preference": "preference",
    "algorithms.distill": "distill",
}
"""Folder of rows -> the section of params.yaml whose runs name them."""


def load_run(section: str, algorithms: Mapping[str, Algorithm]) -> Any:
    """Return the settings of the run's algorithm with its own in their place, typed and checked."""
    return typed_run(at(read(), section), section, algorithms)


def typed_run(own: Any, section: str, algorithms: Mapping[str, Algorithm]) -> Any:
    """Return the same of what params.yaml has of the run."""
    if not isinstance(own, dict) or not isinstance(own.get("algorithm"), str):
        fix = f"Give it an algorithm, one of: {', '.join(algorithms)}"
        raise ParamsError(what=f"{section} names no algorithm", where=PARAMS_FILE, fix=fix)
    if own["algorithm"] not in algorithms:
        fix = _hint(own["algorithm"], algorithms)
        what = f"{section}.algorithm = '{own['algorithm'][:80]}' is unknown"
        raise ParamsError(what=what, where=PARAMS_FILE, fix=fix)
    algorithm = algorithms[own["algorithm"]]
    return check(algorithm.model, algorithm.row.merged(own), where=section)


def _hint(name: str, algorithms: Mapping[str, Algorithm]) -> str:
    """Return the section that has the algorithm, or the nearest name."""
    for folder, section in SECTIONS.items():
        if name in row_modules(f"posttrain.{folder}", "ROWS"):
            also = f", or here '{near}'" if (near := f"online_{name}") in algorithms else ""
            return f"It is an algorithm of {section}.runs{also}"
    return did_you_mean(name, list(algorithms))
