"""A table whose rows are in modules that are imported when a row is looked up: a run imports only what it uses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TypeVar

E = TypeVar("E")


class LazyTable(Mapping[str, E]):
    """Rows by name; each module has its rows in a mapping with the table's name.

    Example: `LazyTable("TASKS", {"two_step": "posttrain.tasks.two_step"})["two_step"]`.
    """

    def __init__(self, table: str, places: Mapping[str, str]) -> None:
        self._table, self.places = table, dict(places)

    def __getitem__(self, name: str) -> E:
        rows: Mapping[str, E] = getattr(import_module(self.places[name]), self._table)
        return rows[name]

    def __contains__(self, name: object) -> bool:
        return name in self.places

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)
