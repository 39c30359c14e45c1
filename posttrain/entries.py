"""A table whose entries are named by text, MODULE:NAME, so that a run imports only the modules of those that it uses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, TypeVar

E = TypeVar("E")


class Entries(Mapping[str, E]):
    """Entries by name, each imported when it is looked up."""

    def __init__(self, places: Mapping[str, str]) -> None:
        self._places = places

    def __getitem__(self, name: str) -> E:
        module, _, attribute = self._places[name].partition(":")
        found: Any = getattr(import_module(module), attribute)
        entry: E = found
        return entry

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)
