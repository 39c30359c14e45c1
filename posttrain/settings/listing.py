"""Tables that list a folder: each file defines rows in a mapping with the table's name. Plugins add more rows."""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from posttrain.errors import ParamsError, PluginError
from posttrain.isolation.library import LIBRARY
from posttrain.settings import plugins

E = TypeVar("E")


def _as_it_is(name: str, row: Any) -> Any:  # noqa: ARG001
    return row


class Listing(Mapping[str, E]):
    """Rows by name. A row's file is imported on lookup, so a run imports only the rows that it uses.

    Plugins add names to a listing with a group. A name in the folder takes precedence over a plugin's, because
    installing a package must not change the meaning of a name in params.yaml. `posttrain check` reports such a plugin.

    Example: `Listing("posttrain.tasks", "TASKS")["two_step"]`.
    """

    def __init__(
        self,
        place: str,
        table: str,
        finish: Callable[[str, Any], E] = _as_it_is,
        *,
        group: str | None = None,
        adopt: Callable[[str, Any], E] = _as_it_is,
    ) -> None:
        """`place`: a package or module, or "" if all names are from plugins.

        `finish(name, row)`: makes the looked-up entry.

        `group`: the plugin group for this table. `adopt(name, object)`: returns the entry for a plugin's object, or
        raises a ValueError or TypeError that says what is wrong with it.
        """
        self._place, self._table, self._finish, self.group, self._adopt = place, table, finish, group, adopt

    @cached_property
    def modules(self) -> dict[str, str]:
        """Return row -> its module, without plugins' rows."""
        return row_modules(self._place, self._table)

    def __getitem__(self, name: str) -> E:
        if name not in self.modules and self.group is not None:
            return self._of_plugin(plugins.find(self.group, name))
        rows: Mapping[str, Any] = getattr(import_module(self.modules[name]), self._table)
        return self._finish(name, rows[name])

    def _of_plugin(self, plugin: plugins.Plugin) -> E:
        try:
            return self._adopt(plugin.name, plugin.load())
        except PluginError:
            raise
        except (ValueError, TypeError) as error:
            raise plugin.fault(str(error)) from error

    def __contains__(self, name: object) -> bool:
        return name in self.modules or name in self._registered()

    def __iter__(self) -> Iterator[str]:
        yield from self.modules
        yield from (name for name in self._registered() if name not in self.modules)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def is_foreign(self, name: str) -> bool:
        """Tell whether an entry is not part of the library: the user's own code, or an installed plugin's."""
        if name in self.modules or self.group is None:
            return False
        registered = plugins.registered(self.group).get(name, ())
        return ":" in name or (bool(registered) and not any(plugin.is_ours for plugin in registered))

    def _registered(self) -> list[str]:
        return [] if self.group is None else plugins.names(self.group)


def usable(table: Mapping[str, E]) -> Iterator[tuple[str, E]]:
    """Yield the rows of a table, skipping broken plugins, which must not break a list of all names."""
    for name in table:
        with contextlib.suppress(PluginError):
            yield name, table[name]


def why_unknown(table: Listing[Any], name: str) -> tuple[str, str]:
    """Return the fix for a name that a table lacks: its plugin is missing, or another name is meant."""
    from posttrain.settings.params import did_you_mean

    if gone := plugins.registered(table.group or "").get(name):
        return f"the {gone[0].where} is gone", gone[0].gone_fix
    fix = did_you_mean(name, list(table)) or f"Give one of: {', '.join(table)}"
    return f"'{name:.80}' is unknown", plugins.or_package(fix) if table.group else fix


def looked_up(table: Listing[E], name: str, where: str) -> E:
    """Return an entry. If it is missing, raise a ParamsError with the place of the name."""
    if name in table:
        return table[name]
    what, fix = why_unknown(table, name)
    raise ParamsError(what=what, where=where, fix=fix)


def instance(*kinds: type) -> Callable[[str, Any], Any]:
    """Return a function that accepts a plugin's object if it is an instance of one of these classes."""

    def adopt(name: str, loaded: Any) -> Any:  # noqa: ARG001
        if not isinstance(loaded, kinds):
            wanted = " or ".join(kind.__name__ for kind in kinds)
            raise TypeError(f"it is a {type(loaded).__name__}, and has to be a {wanted}")
        return loaded

    return adopt


def with_methods(interface: type) -> Callable[[str, Any], Any]:
    """Return a function that accepts a plugin's object if it has every public method of this class."""

    def adopt(name: str, loaded: Any) -> Any:  # noqa: ARG001
        wanted = [key for key, value in vars(interface).items() if callable(value) and not key.startswith("_")]
        if lacking := [key for key in wanted if not callable(getattr(loaded, key, None))]:
            raise TypeError(f"it lacks the methods of {interface.__name__}: {', '.join(lacking)}")
        return loaded

    return adopt


def row_modules(place: str, table: str) -> dict[str, str]:
    """Return row -> its module, without importing."""
    return {name: module for module in listed_modules(place) for name in _rows(module, table)}


def _rows(module: str, table: str) -> list[str]:
    """The rows of a module's table."""
    text = module_file(module).read_text(encoding="utf-8")
    statement = re.search(rf"^{table}\b.*?(?=^[^\s)\]}}]|\Z)", text, flags=re.MULTILINE | re.DOTALL)
    if statement is None:
        return []
    try:  # this statement alone: whole modules take every command 0.1 s
        tree = ast.parse(statement[0])
    except SyntaxError:  # it has a text with lines of its own
        tree = ast.parse(text)
    return list(tables(tree).get(table, ()))


def tables(tree: ast.Module) -> dict[str, dict[str, ast.expr]]:
    """Return the module's literal mappings with text keys: name -> key -> value."""
    mappings = {}
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
            mappings[name] = dict(zip(texts, values, strict=True))
    return mappings


def listed_modules(place: str) -> list[str]:
    """Return the library modules below a package, or the module with this name; empty for an empty name."""
    if not place:
        return []
    folder = LIBRARY.joinpath(*place.split("."))
    files = sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]
    return [".".join(file.relative_to(LIBRARY).with_suffix("").parts) for file in files if file.stem != "__init__"]


def module_file(module: str) -> Path:
    """Return the file of a library module that is not a package."""
    return LIBRARY.joinpath(*module.split(".")).with_suffix(".py")
