"""Analyse one Python file: a digest without comments and layout, its imports, and its use of listings."""

from __future__ import annotations

import ast
import hashlib
import io
import json
import os
import re
import sys
import time
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from posttrain.errors import PipelineError
from posttrain.files import write_text
from posttrain.pipeline.lock.digests import SETTLED_NS, Mark, boot, mark
from posttrain.settings.listing import tables

OUTLINES_FILE: Final = Path(".dvc/tmp/outlines.json")
SKIPPED: Final = frozenset({tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.ENDMARKER})
BLOCKS: Final = frozenset({tokenize.INDENT, tokenize.DEDENT, tokenize.NEWLINE})
MODULE: Final = re.compile(r"posttrain(\.\w+)+")
"""A text that is the dotted name of a library module."""

Place = tuple[int, int]
Span = tuple[Place, Place]
LAST: Final[Span] = ((sys.maxsize, 0), (sys.maxsize, 0))


@dataclass(frozen=True)
class Outline:
    """The analysis of a file: the digest of its code, its imports, and the rows of listings that it uses."""

    digest: str
    imports: list[str]
    """Dotted names: imports, and modules named in texts."""
    names: list[str]
    """Possible rows that it uses itself: `TASKS["two_step"]`, and weights such as `{"correct": 1.0}`."""
    listings: list[list[str]]
    """[place, table] of each Listing that it defines, and its plugin group if it has one."""
    rows: dict[str, dict[str, list[str]]]
    """table -> row -> every text in the row, which may name other rows."""


class Outlines:
    """The outlines of files, cached between processes until a file's mark changes."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Mark, Outline]] = {}
        self._stored, self._new = _stored_outlines(), False

    def of(self, file: str, package: str) -> Outline:
        """Return the outline of a file. Relative imports are resolved from `package`."""
        now = mark(Path(file))
        known = self._known.get(file)
        if known is None or known[0] != now:
            stored = self._stored.get(file)
            if stored is not None and tuple(stored["mark"]) == now:
                outline = Outline(**stored["outline"])
            else:
                outline, self._new = outlined(Path(file), package), True
            known = self._known[file] = now, outline
        return known[1]

    @property
    def marks(self) -> dict[str, Mark]:
        """The marks of the requested files at the time they were read."""
        return {file: seen for file, (seen, _) in self._known.items()}

    def keep(self) -> None:
        """Store the outlines for other processes, if this is a DVC workspace."""
        if not self._new or not OUTLINES_FILE.parent.is_dir():
            return
        now = time.time_ns()
        files = self._stored | {
            file: {"mark": seen, "outline": asdict(outline)}
            for file, (seen, outline) in self._known.items()
            if now - max(seen[2:]) > SETTLED_NS
        }
        write_text(OUTLINES_FILE, json.dumps({"of": _version(), "files": files}), shared=True)
        self._new = False


def normalised(file: Path) -> str:
    """Return a digest of a file's code without comments, docstrings and layout."""
    return outlined(file, "").digest


def is_blank(digest: str) -> bool:
    """Tell whether a digest belongs to a file without code, like most `__init__.py`."""
    return digest == _short("")


def outlined(file: Path, package: str) -> Outline:
    """Return the outline of a file, read now. A file that is not Python is hashed byte by byte."""
    text = file.read_bytes()
    if file.suffix != ".py":
        return Outline(hashlib.sha256(text).hexdigest()[:16], [], [], [], {})
    try:
        tree = ast.parse(text)
        tokens = [token for token in tokenize.tokenize(io.BytesIO(text).readline) if token.type not in SKIPPED]
    except (SyntaxError, ValueError, tokenize.TokenError) as error:
        place, why = (f" line {error.lineno}", error.msg) if isinstance(error, SyntaxError) else ("", error)
        where = f"{os.path.relpath(file)}{place}"
        raise PipelineError(what=f"this is not valid Python ({why})", where=where, fix="Fix the file") from error
    lines = text.decode("utf-8-sig").splitlines(keepends=True)
    nodes = list(_walk(tree))
    code = _outside(tokens, [_span(node, lines) for node in nodes if _is_docstring(node)])
    return Outline(
        _short("\0".join(tokenize.tok_name[token.type] if token.type in BLOCKS else token.string for token in code)),
        sorted({name for node in nodes for name in _imports(node, package)}),
        sorted({name for node in nodes for name in _used_rows(node)}),
        [listing for node in nodes if (listing := _listing(node))],
        {table: {row: _texts(value) for row, value in rows.items()} for table, rows in tables(tree).items()},
    )


def import_line(file: Path, package: str, name: str) -> int:
    """Return the line of a file that imports this name."""
    nodes = [node for node in ast.walk(ast.parse(file.read_bytes())) if isinstance(node, ast.Import | ast.ImportFrom)]
    return min(node.lineno for node in nodes if name in _imports(node, package))


def _walk(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield the nodes of a tree that run. Modules named in a listing's texts are not imported with it."""
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        yield node
        if _listing(node) is not None:
            continue
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                stack += child.orelse
            else:
                stack.append(child)


def _listing(node: ast.AST) -> list[str] | None:
    """Return [place, table] if the node is a Listing, with its plugin group if it has one."""
    match node:
        case ast.Call(
            func=ast.Name(id="Listing"),
            args=[ast.Constant(value=str(place)), ast.Constant(value=str(table)), *_],
            keywords=keywords,
        ):
            groups = [one.value.value for one in keywords if one.arg == "group" and isinstance(one.value, ast.Constant)]
            return [place, table, *(group for group in groups if isinstance(group, str))]
        case _:
            return None


def _imports(node: ast.AST, package: str) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=module, names=names, level=level):
            above = package.split(".")[: len(package.split(".")) - level + 1] if level else []
            base = ".".join([*above, *([module] if module else [])])
            return [f"{base}.{alias.name}" for alias in names]
        case ast.Constant(value=str(text)) if MODULE.fullmatch(text):
            return [text]
        case _:
            return []


def _texts(node: ast.AST) -> list[str]:
    return sorted(
        {part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)}
    )


def _used_rows(node: ast.AST) -> list[str]:
    """Return the rows that the code uses itself: `TABLE["row"]`, and the keys of weights."""
    match node:
        case ast.Subscript(value=ast.Name(id=table), slice=ast.Constant(value=str(name))) if table.isupper():
            return [name]
        case ast.Dict(keys=keys, values=values) if all(_is_number(value) for value in values):
            return [key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
        case _:
            return []


def _is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)


def _is_docstring(node: ast.AST) -> bool:
    """Tell whether the node is a bare string, which nothing uses."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _span(node: ast.AST, lines: Sequence[str]) -> Span:
    """Return the start and end of a node in characters, as tokens count. Nodes count in bytes."""
    begin, end = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]
    return _place(*begin, lines), _place(*end, lines)


def _place(line: int, column: int, lines: Sequence[str]) -> Place:
    return line, len(lines[line - 1].encode()[:column].decode())


def _outside(tokens: Sequence[tokenize.TokenInfo], spans: Sequence[Span]) -> Iterator[tokenize.TokenInfo]:
    """Yield the tokens outside these spans. If the last token of a line is left out, so is the line's end."""
    ordered, after = iter(sorted(spans)), False
    begin, end = next(ordered, LAST)
    for token in tokens:
        while token.start >= end:
            begin, end = next(ordered, LAST)
        inside = begin <= token.start
        if not inside and not (after and token.type == tokenize.NEWLINE):
            yield token
        after = inside


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _stored_outlines() -> dict[str, Any]:
    try:
        stored = json.loads(OUTLINES_FILE.read_bytes())
        return dict(stored["files"]) if stored["of"] == _version() else {}
    except (OSError, ValueError, KeyError, TypeError):  # only a memory: whatever is wrong, the files are read again
        return {}


def _version() -> list[Any]:
    """Return what a cached outline depends on besides its file."""
    return [boot(), sys.version, *mark(Path(__file__))]
