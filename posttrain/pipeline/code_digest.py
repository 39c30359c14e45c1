"""What one Python file holds: its digest without comments and layout, its imports, and the rows of its tables."""

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
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from posttrain.errors import PipelineError
from posttrain.pipeline.digests import SETTLED_NS, Mark, boot, mark
from posttrain.workspace import write_text

TABLES: Final = frozenset(
    {
        "ADAPTERS",
        "ADVANTAGES",
        "DISTILL_ROWS",
        "PAIR_LOSSES",
        "POLICY_ROWS",
        "PREFERENCE_ROWS",
        "REWARDS",
        "SAMPLED_ROWS",
        "SURROGATES",
        "TASKS",
        "UNARY_LOSSES",
    }
)
"""Module-level tables whose rows count only for the runs that name them."""
KEPT: Final = Path(".dvc/tmp/outlines.json")
SKIPPED: Final = frozenset({tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.ENDMARKER})
BLOCKS: Final = frozenset({tokenize.INDENT, tokenize.DEDENT, tokenize.NEWLINE})
MODULE: Final = re.compile(r"(posttrain|stages)(\.\w+)+")
"""A text that names a module of the library."""

Place = tuple[int, int]
Span = tuple[Place, Place]
LAST: Final[Span] = ((sys.maxsize, 0), (sys.maxsize, 0))


@dataclass(frozen=True)
class Part:
    """Code that counts as a whole: a row of a table, or a file without its rows."""

    digest: str
    imports: list[str]
    """Dotted names: what is imported, and modules that a text names."""
    names: list[str]
    """Rows that it names: every text of a row; elsewhere the defaults of choices and the keys of weights."""


@dataclass(frozen=True)
class Outline:
    """A file: what always counts, and the rows that count for the runs that name them."""

    base: Part
    rows: dict[str, Part]

    def parts(self, names: Collection[str]) -> list[Part]:
        """Return what counts for a run that uses these names."""
        return [self.base, *(row for name, row in sorted(self.rows.items()) if name in names)]

    def digest(self, names: Collection[str]) -> str:
        """Return the digest of what counts for a run that uses these names."""
        return _short("\n".join(part.digest for part in self.parts(names)))


class Outlines:
    """The outlines of files, remembered between processes until a file's mark changes."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Mark, Outline]] = {}
        self._kept, self._new = _kept(), False

    def of(self, file: str, package: str) -> Outline:
        """Return the outline of a file of a package, which relative imports start from."""
        found = mark(Path(file))
        known = self._known.get(file)
        if known is None or known[0] != found:
            kept = self._kept.get(file)
            if kept is not None and tuple(kept["mark"]) == found:
                outline = Outline(Part(**kept["base"]), {name: Part(**row) for name, row in kept["rows"].items()})
            else:
                outline, self._new = outlined(Path(file), package), True
            known = self._known[file] = found, outline
        return known[1]

    @property
    def marks(self) -> dict[str, Mark]:
        """The marks of the files that were asked for, as they were when they were read."""
        return {file: found for file, (found, _) in self._known.items()}

    def keep(self) -> None:
        """Remember them for other processes, where the workspace is DVC's."""
        if not self._new or not KEPT.parent.is_dir():
            return
        now = time.time_ns()
        files = self._kept | {
            file: {"mark": found, **asdict(outline)}
            for file, (found, outline) in self._known.items()
            if now - max(found[2:]) > SETTLED_NS
        }
        write_text(KEPT, json.dumps({"of": _version(), "files": files}), shared=True)
        self._new = False


def normalised(file: Path) -> str:
    """Return a digest of a file's code without comments, docstrings and layout, the rows of its tables among it."""
    outline = outlined(file, "")
    return outline.digest(outline.rows)


def outlined(file: Path, package: str) -> Outline:
    """Return the outline of a file, read now; a file that is not Python counts byte by byte."""
    text = file.read_bytes()
    if file.suffix != ".py":
        return Outline(Part(hashlib.sha256(text).hexdigest()[:16], [], []), {})
    try:
        tree = ast.parse(text)
        tokens = [token for token in tokenize.tokenize(io.BytesIO(text).readline) if token.type not in SKIPPED]
    except (SyntaxError, ValueError, tokenize.TokenError) as error:
        place, why = (f" line {error.lineno}", error.msg) if isinstance(error, SyntaxError) else ("", error)
        where = f"{os.path.relpath(file)}{place}"
        raise PipelineError(what=f"this is not valid Python ({why})", where=where, fix="Fix the file") from error
    lines = text.decode("utf-8-sig").splitlines(keepends=True)
    displays, rows = _tables(tree)
    rest = list(_walk(tree, displays))
    out = [_span(node, lines) for node in [*displays, *filter(_is_docstring, rest)]]
    parts = {}
    for name, nodes in rows.items():
        inner = [part for node in nodes for part in ast.walk(node)]
        parts[name] = _part(inner, _between(tokens, [_span(node, lines) for node in nodes]), package, _texts(inner))
    return Outline(_part(rest, _outside(tokens, out), package, _defaults(rest)), parts)


def import_line(file: Path, package: str, name: str) -> int:
    """Return the line of a file on which it imports this name."""
    nodes = [node for node in ast.walk(ast.parse(file.read_bytes())) if isinstance(node, ast.Import | ast.ImportFrom)]
    return min(node.lineno for node in nodes if name in _imports(node, package))


def _tables(tree: ast.Module) -> tuple[list[ast.AST], dict[str, list[ast.AST]]]:
    """Return the displays of the module's tables, and the nodes of each row by its name."""
    displays: list[ast.AST] = []
    rows: dict[str, list[ast.AST]] = {}
    for statement in tree.body:
        target = (
            statement.targets[0]
            if isinstance(statement, ast.Assign)
            else statement.target
            if isinstance(statement, ast.AnnAssign)
            else None
        )
        if not (
            isinstance(target, ast.Name) and target.id in TABLES and isinstance(statement, ast.Assign | ast.AnnAssign)
        ):
            continue
        inner = ast.walk(statement.value) if statement.value else iter(())
        display = next((node for node in inner if isinstance(node, ast.Dict | ast.List | ast.Tuple)), None)
        if display and (found := _rows(display)):
            displays.append(display)
            for name, nodes in found:
                rows.setdefault(name, []).extend(nodes)
    return displays, rows


def _rows(node: ast.AST) -> list[tuple[str, list[ast.AST]]]:
    """The rows of a display: the items of a mapping, or calls that begin with a name; none where one is neither."""
    pairs: list[tuple[ast.AST | None, list[ast.AST]]] = []
    if isinstance(node, ast.Dict):
        pairs = [(key, [key, value]) for key, value in zip(node.keys, node.values, strict=True) if key]
        if len(pairs) < len(node.keys):
            return []
    elif isinstance(node, ast.Tuple | ast.List):
        pairs = [(elt.args[0] if isinstance(elt, ast.Call) and elt.args else None, [elt]) for elt in node.elts]
    named = [(str(key.value), nodes) for key, nodes in pairs if isinstance(key, ast.Constant)]
    return named if len(named) == len(pairs) else []


def _walk(tree: ast.Module, left_out: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """Yield the nodes of a tree that run, without these parts of it."""
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        yield node
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                stack += child.orelse
            elif not any(child is part for part in left_out):
                stack.append(child)


def _part(nodes: Sequence[ast.AST], tokens: Iterable[tokenize.TokenInfo], package: str, names: set[str]) -> Part:
    imports = {name for node in nodes for name in _imports(node, package)}
    code = "\0".join(tokenize.tok_name[token.type] if token.type in BLOCKS else token.string for token in tokens)
    return Part(_short(code), sorted(imports), sorted(names))


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


def _texts(nodes: Sequence[ast.AST]) -> set[str]:
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def _defaults(nodes: Sequence[ast.AST]) -> set[str]:
    """The rows that code names: `OneOf(TABLE, "row")`, `TABLE["row"]`, and weights such as `{"correct": 1.0}`."""
    found: set[str] = set()
    for node in nodes:
        match node:
            case ast.Call(func=ast.Name(id="OneOf"), args=[_, ast.Constant(value=str(name)), *_]):
                found.add(name)
            case ast.Subscript(value=ast.Name(id=table), slice=ast.Constant(value=str(name))) if table in TABLES:
                found.add(name)
            case ast.Dict(keys=keys, values=values) if all(_is_number(value) for value in values):
                found |= {key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}
    return found


def _is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)


def _is_docstring(node: ast.AST) -> bool:
    """Return whether it is a text that stands alone, which nothing computes with."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _span(node: ast.AST, lines: Sequence[str]) -> Span:
    """Return where a node begins and ends as tokens count: in characters; nodes count in bytes."""
    begin, end = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]
    return _place(*begin, lines), _place(*end, lines)


def _place(line: int, column: int, lines: Sequence[str]) -> Place:
    return line, len(lines[line - 1].encode()[:column].decode())


def _between(tokens: Sequence[tokenize.TokenInfo], spans: Sequence[Span]) -> list[tokenize.TokenInfo]:
    return [token for begin, end in spans for token in tokens if begin <= token.start and token.end <= end]


def _outside(tokens: Sequence[tokenize.TokenInfo], spans: Sequence[Span]) -> Iterator[tokenize.TokenInfo]:
    """Yield the tokens outside these spans; the end of a line whose last token is left out is left out with it."""
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


def _kept() -> dict[str, Any]:
    try:
        found = json.loads(KEPT.read_bytes())
        return dict(found["files"]) if found["of"] == _version() else {}
    except (OSError, ValueError, KeyError, TypeError):  # only a memory: whatever is wrong, the files are read again
        return {}


def _version() -> list[Any]:
    """Return what a cached outline depends on, apart from its file."""
    return [boot(), sys.version, *mark(Path(__file__))]
