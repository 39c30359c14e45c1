"""Tables that are the listing of a folder: each file has its rows in a mapping of the table's name."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from posttrain.isolation.library import LIBRARY

E = TypeVar("E")


def _as_it_is(name: str, row: Any) -> Any:  # noqa: ARG001
    return row


class Listing(Mapping[str, E]):
    """Rows by name; the file of a row is imported when the row is looked up: a run imports only what it uses.

    Example: `Listing("posttrain.tasks", "TASKS")["two_step"]`.
    """

    def __init__(self, place: str, table: str, finish: Callable[[str, Any], E] = _as_it_is) -> None:
        """`place`: a package or a module; `finish(name, row)`: what is looked up."""
        self._place, self._table, self._finish = place, table, finish

    @cached_property
    def modules(self) -> dict[str, str]:
        """Return row -> the module that has it."""
        return row_modules(self._place, self._table)

    def __getitem__(self, name: str) -> E:
        rows: Mapping[str, Any] = getattr(import_module(self.modules[name]), self._table)
        return self._finish(name, rows[name])

    def __contains__(self, name: object) -> bool:
        return name in self.modules

    def __iter__(self) -> Iterator[str]:
        return iter(self.modules)

    def __len__(self) -> int:
        return len(self.modules)


def row_modules(place: str, table: str) -> dict[str, str]:
    """Return row -> the module that has it, without an import."""
    return {name: module for module in listed_modules(place) for name in _rows(module, table)}


def _rows(module: str, table: str) -> list[str]:
    text = module_file(module).read_text(encoding="utf-8")
    return list(tables(ast.parse(text)).get(table, ())) if f"\n{table}" in text else []


def tables(tree: ast.Module) -> dict[str, dict[str, ast.expr]]:
    """Return the module's mappings that are written out with texts as keys: name -> key -> value."""
    found = {}
    for statement in tree.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Dict(keys=keys, values=values)):
                pass
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.Dict(keys=keys, values=values)):
                pass
            case _:
                continue
        texts = [key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
        if len(texts) == len(keys):
            found[name] = dict(zip(texts, values, strict=True))
    return found


def listed_modules(place: str) -> list[str]:
    """Return the modules of the library below a package, or the one of this name."""
    folder = LIBRARY.joinpath(*place.split("."))
    files = sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]
    return [".".join(file.relative_to(LIBRARY).with_suffix("").parts) for file in files if file.stem != "__init__"]


def module_file(module: str) -> Path:
    """Return the file of a module of the library that is no package."""
    return LIBRARY.joinpath(*module.split(".")).with_suffix(".py")
