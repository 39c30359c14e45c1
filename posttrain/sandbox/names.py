"""The names that tests use: names of the tests, and names of the program."""

from __future__ import annotations

import ast
import builtins
import symtable
import sys
import types
from typing import Any, Final

from posttrain.sandbox.objects import ProgramFunction, is_object
from posttrain.sandbox.remote import Remote
from posttrain.sandbox.values import TYPES

ASKED: Final = {"isinstance": "is_kind", "issubclass": "is_subclass", "type": "kind_of"}
"""Built-in functions that do not ask a reference to an object, and the method that does."""


class Asking(ast.NodeTransformer):
    """Code that asks the program for the class of its objects."""

    def __init__(self, tree: ast.AST) -> None:
        nodes = list(ast.walk(tree))
        defined = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        defined |= {node.arg for node in nodes if isinstance(node, ast.arg)}
        self._asked = ASKED.keys() - defined - {node.name for node in nodes if isinstance(node, ast.FunctionDef)}

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Rewrite `isinstance(x, C)` etc."""
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id in self._asked:
            node.func.id = f"__{node.func.id}__"
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """Rewrite `x.__class__`."""
        self.generic_visit(node)
        if node.attr != "__class__" or not isinstance(node.ctx, ast.Load):
            return node
        name = ast.copy_location(ast.Name("__type__", ast.Load()), node)
        return ast.copy_location(ast.Call(name, [node.value], []), node)


class Names(dict[str, Any]):
    """The names of the tests. Names that the tests do not define belong to the program and are looked up on use."""

    def __init__(self, names: dict[str, Any], remote: Remote, entry: str | None, wanted: list[str]) -> None:
        super().__init__(names)
        self._remote, self._entry, self._wanted = remote, entry, {*wanted}

    def __missing__(self, name: str) -> Any:
        if self._entry and name in ("candidate", self._entry):
            return self._candidate(self._entry)
        if name not in self._wanted or (self._entry and not name[:1].isupper()):
            raise KeyError(name)
        try:
            value = self._remote.named(name)
        except NameError:
            if self._entry:
                raise KeyError(name) from None
            raise
        if is_object(value) and (name in sys.stdlib_module_names or (self._entry and name in TYPES)):
            raise self._remote.refuse(
                f"the tests use `{name}` without importing it, but the program also defines it. Import it"
            )
        if isinstance(value, ProgramFunction):  # a variable may change, a function hardly does
            self[name] = value
        return value

    def _candidate(self, entry: str) -> Any:
        """Return the function that is tested. An expression such as `Solution().f` is computed for each call."""
        if entry.isidentifier():
            function = self["candidate"] = self[entry] = self._remote.named(entry)
            return function

        def candidate(*args: Any, **kwargs: Any) -> Any:
            return self._remote.named(entry)(*args, **kwargs)

        return candidate


class Solution(types.ModuleType):
    """The program as a module, for tests with `from solution import f`."""

    def __init__(self, name: str, remote: Remote) -> None:
        super().__init__(name)
        self._remote = remote

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._remote.named(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_"):
            raise self._remote.refuse(f"`{name}` of the program cannot be set")
        super().__setattr__(name, value)


def words(tree: ast.AST) -> set[str]:
    """Return the names in a text, and its attributes with a leading dot."""
    nodes = list(ast.walk(tree))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    names |= {f".{node.attr}" for node in nodes if isinstance(node, ast.Attribute)}
    names |= {"match statement" for node in nodes if isinstance(node, ast.Match)}
    imported = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    return (
        names
        | {one.name for node in imported for one in node.names}
        | {str(getattr(node, "module", "")) for node in imported}
    )


def free_names(tests: str) -> list[str]:
    """Return the names that the program must define: used by the tests, but neither defined nor imported there."""
    tables, used, defined = [symtable.symtable(tests, "<tests>", "exec")], set(), set(dir(builtins))
    defined |= {symbol.get_name() for symbol in tables[0].get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    while tables:
        table = tables.pop()
        tables += table.get_children()
        used |= {
            symbol.get_name() for symbol in table.get_symbols() if symbol.is_global() or table.get_type() == "module"
        }
    return sorted(used - defined)
