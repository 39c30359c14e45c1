"""Search for a query in the rows of tables and the lines of other files."""

from __future__ import annotations

import contextlib
import io
import mmap
import os
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

import polars as pl
import pyarrow.parquet as pq

from posttrain.data.parquet import DECODE_ERRORS
from posttrain.pipeline.lineage.query import UTF_8, Query

MOST: Final = 100
"""The most matches that are listed for a file that is not a table."""
_PARQUET: Final = b"PAR1"
_SLICE: Final = 8192
_NOT_SEARCHED: Final = {".git", "__pycache__", "node_modules"}


class NotSearchedError(Exception):
    """A search of the file's bytes might miss a text."""


def in_files(files: Iterable[Path], query: Query) -> tuple[dict[str, list[int]], dict[str, str]]:
    """Return the matching rows or lines of each file, and the reasons why other files could not be searched."""
    rows, failed = dict[str, list[int]](), dict[str, str]()
    for file in files:
        try:
            if places := in_file(file, query):
                rows[str(file)] = places
        except (OSError, NotSearchedError) as error:
            failed[str(file)] = str(getattr(error, "strerror", None) or error)
    return rows, failed


def in_file(file: Path, query: Query) -> list[int] | None:
    """Return the matching rows (of parquet) or lines, counted from 1; None if there are none."""
    if not file.stat().st_size:
        return None
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return in_bytes(data, query)


def in_bytes(data: bytes | mmap.mmap, query: Query) -> list[int] | None:
    """Return the matching rows or lines in the content of a file. Weights contain no text and are skipped."""
    header = int.from_bytes(data[:8], "little")
    if data[8:10] == b'{"' and header <= len(data) - 8:  # safetensors: eight bytes of its header's length, and this
        return None
    if data[:4] == _PARQUET:
        with contextlib.suppress(*DECODE_ERRORS):  # a damaged table is searched as bytes
            with pq.ParquetFile(io.BytesIO(data[:])) as parquet:
                frame = pl.DataFrame(pl.from_arrow(parquet.read().replace_schema_metadata(None)))
            return [row + 1 for row in rows_of(frame, query)] or None
    lines = {line for encoding, pattern in query.patterns.items() for line in _lines(data, pattern, encoding)}
    for encoding in query.decoded:
        with contextlib.suppress(UnicodeError):
            lines.update(_lines(data[:].decode(encoding).encode(), query.patterns[UTF_8], UTF_8))
    if not lines and data[:4] == _PARQUET:
        raise NotSearchedError("damaged parquet")
    return sorted(lines) or None


def _lines(data: bytes | mmap.mmap, pattern: re.Pattern[bytes], encoding: str) -> Iterator[int]:
    """Yield the lines, counted from 1, on which matches of a text in this encoding begin."""
    width = len("a".encode(encoding))
    if width > 1 and data.find(b"\0") < 0:  # its line ends have a zero byte
        return
    line, read = 1, 0
    places = (start for match in pattern.finditer(data) if (start := match.start()) % width == 0)
    for place in islice(places, MOST):
        between = data[read:place]
        line += between.count(b"\n") if encoding == UTF_8 else between.decode(encoding, "replace").count("\n")
        read = place
        yield line


def rows_of(frame: pl.DataFrame, query: Query) -> list[int]:
    """Return the rows of a table, counted from 0, with a matching text."""
    frame = frame.with_columns(pl.col(pl.Categorical, pl.Enum).cast(pl.String))
    named = [name for name, dtype in frame.schema.items() if "String" in str(dtype)]
    rows: list[int] = []
    for index, part in enumerate(frame.select(named).iter_slices(_SLICE) if named else ()):
        written = part.select(pl.struct(named).struct.json_encode()).to_series()
        holds = written.str.contains_any(query.json_patterns)
        rows += (holds.arg_true() + index * _SLICE).to_list()
    return rows


def table_rows(query: Query, files: Iterable[Path]) -> list[dict[str, Any]]:
    """Return the matching rows of these tables."""
    rows: list[dict[str, Any]] = []
    for file in files:
        with contextlib.suppress(*DECODE_ERRORS):  # `verify` is for damage
            with pq.ParquetFile(file) as parquet:
                frame = pl.DataFrame(pl.from_arrow(parquet.read().replace_schema_metadata(None)))
            rows += frame[rows_of(frame, query)].to_dicts()
    return rows


def workspace_files(root: Path, aside: Path) -> Iterator[Path]:
    """Yield every file of the workspace except files of git, environments, and DVC's cache (searched separately)."""
    for here, folders, files in os.walk(root):
        folders[:] = sorted(
            name
            for name in folders
            if name not in _NOT_SEARCHED
            and not Path(here, name, "pyvenv.cfg").exists()
            and Path(here, name).resolve() != aside.resolve()
        )
        yield from (file for name in sorted(files) if (file := Path(here, name)).is_file())
