"""The settings of a run in params.yaml: the preset of its algorithm with some settings replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from posttrain.algorithms.objective import AlgorithmRow
from posttrain.errors import ParamsError
from posttrain.settings.listing import row_modules
from posttrain.settings.params import Params, did_you_mean

CALLS: Final = {
    "algorithms.preference": "train_model and PreferenceTraining.preset",
    "algorithms.policy": "train_online and OnlineConfig.preset",
    "online.sampled": "train_online and OnlineConfig.preset",
    "algorithms.distill": "distill and StudentConfig.preset",
}
"""Folder of presets -> the calls that use them for training."""


@dataclass(frozen=True)
class Algorithm:
    """A preset that a run may use, and the settings class of such a run."""

    row: AlgorithmRow
    model: type[Params]


class Algorithms(Mapping[str, Algorithm]):
    """The presets of several tables, each with the settings class of its runs. A preset is imported on lookup.

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

    def entry(self, name: str) -> Algorithm:
        """Return the preset of an algorithm that a user asked for."""
        if name in self:
            return self[name]
        for room, call in CALLS.items():
            if name in row_modules(f"posttrain.{room}", "ROWS"):
                fix = f"It is an algorithm of {call}"
                raise ParamsError(what=f"'{name}' is not an algorithm of this call", where="algorithm", fix=fix)
        raise ParamsError(what=f"'{name}' is unknown", where="algorithm", fix=did_you_mean(name, sorted(self)))

    def __contains__(self, name: object) -> bool:
        return any(name in rows for rows, _ in self._tables)

    def __iter__(self) -> Iterator[str]:
        return (name for rows, _ in self._tables for name in rows)

    def __len__(self) -> int:
        return sum(len(rows) for rows, _ in self._tables)
