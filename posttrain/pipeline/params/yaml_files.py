"""Read YAML files. Errors show the line."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from posttrain.errors import ParamsError, shortened
from posttrain.pipeline.params.parsed import parsed_once

DIRECTIVE: Final = re.compile(r"\ufeff?(?:[ \t]*(?:#.*)?\n)*(%\w+)")
"""Directives that may precede a YAML document, e.g. `%YAML 1.1`. ruamel.yaml raises an IndexError there."""
MOST_NODES: Final = 100_000
"""The most values that aliases may add to a file. A few lines of nested aliases can stand for billions."""


class AliasError(ParamsError):
    """The aliases of a YAML file expand to more than fits into memory, even for DVC."""


def refuse_swollen(path: str | os.PathLike[str]) -> None:
    """Raise if DVC would never finish reading a YAML file. Other checks report other mistakes."""
    try:
        read_yaml(path)
    except AliasError:
        raise
    except ParamsError:
        return


def read_yaml(path: str | os.PathLike[str], needs: str = "one section per stage") -> dict[str, Any]:
    """Return a YAML file as read-only plain data. It is parsed once per process, and again after an edit.

    `needs`: what the file must have, for the error about one that has nothing.
    """
    file = Path(path)
    if not file.is_file():
        raise ParamsError(what="file not found", where=str(file), fix="Run in the project's root folder")
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise _unreadable(error, str(file)) from error
    data = _parsed(text, str(file))
    if not isinstance(data, dict):
        raise ParamsError(what="holds no sections", where=str(file), fix=f"It needs {needs}")
    return dict(data)


@lru_cache(maxsize=8)
def _parsed(text: str, where: str) -> Any:
    """Return the data of a YAML text, from an earlier process if one has parsed it."""
    return parsed_once(text, Path(where).name, lambda: _parse(text, where))


def _parse(text: str, where: str) -> Any:
    """Return the data of a YAML text. Errors for duplicate keys, syntax errors and huge aliases show the line."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    check_merged(text, where)
    if directive := DIRECTIVE.match(text):
        what = f"line {directive[0].count(chr(10)) + 1}: directives such as {directive[1]} are not supported"
        raise ParamsError(what=what, where=where, fix="Remove the line")
    try:
        constructor, _ = YAML(typ="safe", pure=True).get_constructor_parser(text)
        node = constructor.composer.get_single_node()
        _check_aliases(node, where)
        return None if node is None else constructor.construct_document(node)
    except ParamsError:
        raise
    except (YAMLError, LookupError, RecursionError, ValueError) as error:
        raise _unreadable(error, where) from error


def _unreadable(error: Exception, where: str) -> ParamsError:
    reason = shortened(str(error), 300)
    return ParamsError(what=f"not readable as YAML ({reason})", where=where, fix="Fix the file")


def _check_aliases(root: Any, where: str) -> None:
    """Reject aliases that contain themselves or expand to too many values, and null bytes."""
    sizes: dict[int, int] = {}

    def size(node: Any, above: frozenset[int]) -> int:
        if id(node) in above:
            raise _refused(node, "an alias contains itself", where)
        if id(node) not in sizes:
            if isinstance(node.value, str) and "\0" in node.value:
                line = f"line {node.start_mark.line + 1}: "
                raise ParamsError(what=f"{line}the text contains a null byte", where=where, fix="Remove the null byte")
            inside = above | {id(node)}
            sizes[id(node)] = 1 + sum(size(part, inside) for part in _parts(node))
            if sizes[id(node)] - len(sizes) > MOST_NODES:
                raise _refused(node, f"its aliases stand for more than {MOST_NODES} values", where)
        return sizes[id(node)]

    if root is not None:
        size(root, frozenset())


def _parts(node: Any) -> Iterator[Any]:
    """Yield the direct children of a node: items, or keys and values."""
    for part in node.value if isinstance(node.value, list) else ():
        yield from part if isinstance(part, tuple) else (part,)


def _refused(node: Any, what: str, where: str) -> AliasError:
    line = f"line {node.start_mark.line + 1}: "
    return AliasError(what=f"{line}{what}", where=where, fix="Write the values out, without `&` and `*`")


def check_merged(text: str, where: str) -> None:
    """Reject a text with an unresolved git merge conflict."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("<<<<<<< "):
            fix = "Keep what is right between `<<<<<<<` and `>>>>>>>`, and remove these lines and `=======`"
            raise ParamsError(what=f"line {number}: git left a merge conflict", where=where, fix=fix)
