"""The row that `where` searches for: by its id, by file and line, or by a part of its text."""

from __future__ import annotations

import codecs
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from posttrain.data.columns import ID_LENGTH
from posttrain.errors import DataError
from posttrain.pipeline.params.params_file import load, read
from posttrain.pipeline.params.stage_table import group_of
from posttrain.pipeline.tables.options import FileTable
from posttrain.pipeline.tables.readers import PLAIN, READERS, Columns, CsvDialect, file_part
from posttrain.pipeline.tables.sources import FilesRun, sources_by_key
from posttrain.pipeline.workspace import PARAMS_FILE

LONG: Final = 20
"""Shorter texts, such as `yes`, also appear in other rows. They are searched only if the row has no longer text."""
SHORTEST: Final = 4
LONGEST: Final = 500
"""Only the beginning of longer texts is searched, because copies may be truncated."""
UTF_8: Final = "utf-8"
ENCODINGS: Final = (UTF_8, "cp1252", "utf-16-le", "utf-16-be")
"""Encodings to search for in every file."""
_ID: Final = re.compile(rf"[0-9a-f]{{{ID_LENGTH}}}")
_PLACE: Final = re.compile(r"(.+):([0-9]+)")
_NOT_TEXT: Final = {"id", "split", "problem", "prompt_id", "policy", "task", "role", "from"}
"""Keys whose values name something and are not the row's own text."""


@dataclass(frozen=True)
class Query:
    """The texts and ids to search for. One match is enough."""

    ids: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    encodings: tuple[str, ...] = ENCODINGS

    @cached_property
    def json_patterns(self) -> list[str]:
        """The patterns for a table row as JSON. A cell may contain JSON."""
        once = [_inner(text) for text in self.texts]
        return list(dict.fromkeys([*(f'"{row_id}"' for row_id in self.ids), *once, *map(_inner, once)]))

    @cached_property
    def patterns(self) -> dict[str, re.Pattern[bytes]]:
        """Encoding -> pattern for the bytes of any other file. UTF-8 comes first."""
        patterns: dict[str, re.Pattern[bytes]] = {}
        seen: set[bytes] = set()
        for encoding in (name for name in self.encodings if name not in self.decoded):
            ways = [way for text in self._ways if (way := _encoded(text, encoding)) and way not in seen]
            seen.update(ways)
            if ways:
                patterns[encoding] = re.compile(b"|".join(map(re.escape, ways)))
        return patterns

    @cached_property
    def decoded(self) -> list[str]:
        """Encodings such as UTF-7, in which the bytes of a text depend on adjacent text."""
        return [
            name
            for name in self.encodings
            if any(2 * _encoded(text, name) != _encoded(2 * text, name) for text in self._ways)
        ]

    @cached_property
    def _ways(self) -> list[str]:
        """The ids, and each text unchanged and as written in JSON, CSV and HTML."""
        ways = dict.fromkeys(self.ids)
        for text in self.texts:
            for written in (text, _inner(text), _inner(text, ascii_only=True), text.replace('"', '""')):
                page = written.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
                html = written.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
                ways |= dict.fromkeys((written, page, html))
        return list(ways)


def is_row(what: str) -> bool:
    """Tell whether a text has the form of a row id."""
    return _ID.fullmatch(what) is not None


def place_of(what: str) -> tuple[Path, int] | None:
    """Return FILE and LINE from FILE:LINE, if the file exists."""
    match = _PLACE.fullmatch(what)
    return (Path(match[1]), int(match[2])) if match and Path(match[1]).is_file() else None


def parse_query(row: str) -> Query:
    """Return the query for the command's argument."""
    if is_row(row):
        return Query(ids=(row,), encodings=source_encodings())
    if place := place_of(row):
        texts = texts_of([_source_row(*place)])
        if not texts:
            raise DataError(
                what="the row has no text to search for", where=row, fix="Give its id, or a part of its text"
            )
        return Query(texts=texts, encodings=source_encodings())
    if len(row.strip()) < SHORTEST:
        fix = f"Give an id, FILE:LINE, or at least {SHORTEST} characters of the row's text"
        raise DataError(what="the text is too short", where=f"'{row}'", fix=fix)
    return Query(texts=(row.strip()[:LONGEST],), encodings=source_encodings())


def texts_of(rows: Iterable[Any]) -> tuple[str, ...]:
    """Return the texts that identify rows: all long texts of a row, or else its longest text."""
    chosen: dict[str, None] = {}
    for row in rows:
        texts = [text.strip()[:LONGEST].strip() for text in _strings(row)]
        long = [text for text in texts if len(text) >= LONG]
        chosen |= dict.fromkeys(long or sorted((text for text in texts if text), key=len)[-1:])
    return tuple(chosen)


def _strings(value: Any) -> Iterator[str]:
    """Yield every text in a row except system turns, which rows share."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        if "system" not in (value.get("role"), value.get("from")):
            for key, inner in value.items():
                yield from () if key in _NOT_TEXT else _strings(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _strings(inner)


def _source_row(file: Path, number: int) -> Any:
    """Return a row of the user's file, counted as in errors of the data stages."""
    if file.suffix.lower() not in READERS:
        what, fix = f"rows of a '{file.suffix}' file cannot be read", f"Name one of {', '.join(READERS)}"
        raise DataError(what=what, where=str(file), fix=f"{fix}, or give a piece of the row's text")
    part, names = file_part(file, _dialect(file)), Columns(frozenset())
    next(part.rows(names, str(file)), None)
    for line, row in part.rows(Columns(frozenset(names.seen)), str(file)):
        if line == number:
            if isinstance(row, dict):
                return row
            raise DataError(what=f"{row}", where=f"{file}:{number}", fix="Give a piece of the row's text")
    raise DataError(what="no row has this number", where=f"{file}:{number}", fix="Lines and rows are counted from 1")


def _dialect(file: Path) -> CsvDialect:
    """Return how a table of `data.files` reads this file."""
    whole = Path(os.path.abspath(file))
    for path, dialect in _dialects():
        place = Path(os.path.abspath(path))
        if whole.is_relative_to(place) or fnmatch(str(whole), str(place)):
            return dialect
    return PLAIN


def _dialects() -> Iterator[tuple[Path, CsvDialect]]:
    """Yield the path and format of each source of `data.files` that sets a separator or an encoding."""
    for name in group_of(read(), "data.files") if Path(PARAMS_FILE).is_file() else ():
        run = load(FilesRun, f"data.files.{name}")
        for _, source in sources_by_key(run).values():
            if isinstance(source, FileTable) and source.dialect != PLAIN:
                yield Path(run.path) / source.path, source.dialect


def source_encodings() -> tuple[str, ...]:
    """Return the encodings to search in: common encodings, and encodings of sources in params.yaml."""
    encodings = dict.fromkeys(ENCODINGS)
    for _, dialect in _dialects():
        name = codecs.lookup(dialect.encoding or UTF_8).name
        marked = {"utf-8-sig": [UTF_8], "utf-16": [], "utf-32": ["utf-32-le", "utf-32-be"]}  # with a byte order mark
        encodings |= dict.fromkeys(marked.get(name, [name]))
    return tuple(encodings)


def _encoded(text: str, encoding: str) -> bytes:
    """Return the bytes of a text; empty if the encoding lacks its characters."""
    try:
        return text.encode(encoding)
    except UnicodeError:
        return b""


def _inner(text: str, *, ascii_only: bool = False) -> str:
    return json.dumps(text, ensure_ascii=ascii_only)[1:-1]
