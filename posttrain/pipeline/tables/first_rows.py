"""Read some rows of the user's files for `check`: the first rows, or rows drawn from all. Nothing is written."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import polars as pl

from posttrain.data.columns import Kind
from posttrain.data.layouts import wanted_columns
from posttrain.pipeline.tables.conversion import read_parts
from posttrain.pipeline.tables.find_files import FileFinder, Parts
from posttrain.pipeline.tables.options import FileTable, Source, most_dropped
from posttrain.pipeline.tables.readers import Columns, Numbered, Part
from posttrain.pipeline.tables.user_data import ReadSource, named_splits, tried
from posttrain.pipeline.tables.user_splits import Notes, rows_text, select_parts

FIRST: Final = 100
"""The number of rows that `check` reads from each file."""
_LARGE_JSON: Final = 32 * 2**20
"""`check` skips .json files with more bytes, because they can only be read completely."""


@dataclass
class FirstRows:
    """The first rows of a source's files: lines about errors, one row, and the files with more rows."""

    faults: list[str]
    first: Mapping[str, Any] | None
    cut: list[str]
    read: ReadSource | None = None
    """The rows; None if no file is read."""


def first_rows(
    source: Source, kind: Kind, where: str, root: Path, *, outside_workspace: bool, alone: bool
) -> FirstRows:
    """Read the first rows of every file of a source as the stage would, without writing anything."""
    assert isinstance(source, FileTable)
    by_split = FileFinder(where, outside_workspace, source.dialect).find(source.path, root, source.splits.values())
    parts = select_parts(by_split, source, kind, where, _unsaid, alone=alone)
    cut = [file.place for files in parts.values() for file in files if _is_large_json(file)]
    some = {name: [_first_of(file, cut) for file in files if not _is_large_json(file)] for name, files in parts.items()}
    if not any(some.values()):
        return FirstRows([], None, cut)
    converted = read_parts(some, kind, source, None, where)
    read = named_splits(converted, list(parts), source, kind, where, alone=alone)
    read.log = Notes(where, _unsaid)
    rows, rejected, lines = tried(read, kind)
    most = most_dropped(source.bad_rows)
    wrong = most is None or rejected.height > most * read.count
    if most is not None and wrong:
        said = f"{rows_text(rejected.height)} of the {read.count:,} that were read"
        lines = [f"{said} are wrong, more than bad_rows: {{drop: {most:g}}} leaves out", *lines]
    return FirstRows(lines if wrong else [], next(rows.iter_rows(named=True), None), cut, read)


def drawn_rows(
    source: Source, kind: Kind, where: str, root: Path, *, outside_workspace: bool, count: int
) -> pl.DataFrame:
    """Return `count` rows of each split in a source's files, with `split`, `file` and `line`.

    They are drawn with seed 0 from all files except large .json files.
    """
    assert isinstance(source, FileTable)
    by_split = FileFinder(where, outside_workspace, source.dialect).find(source.path, root, source.splits.values())
    parts = select_parts(by_split, source, kind, where, _unsaid, alone=False)
    wanted, sample = wanted_columns(kind) | source.read, list[_Drawn]()
    for split, files in parts.items():
        rows = (_Drawn(split, part.place, *row) for part in files if not _is_large_json(part)
                for row in part.rows(Columns(wanted), where))  # fmt: skip
        sample += _drawn(rows, count)
    if not sample:
        return pl.DataFrame()
    drawn: Parts = {}
    for split, file in dict.fromkeys((one.split, one.place) for one in sample):
        some = [(one.number, one.row) for one in sample if (one.split, one.place) == (split, file)]
        drawn.setdefault(split, []).append(Part(file, partial(_given, sorted(some, key=lambda pair: pair[0]))))
    read = named_splits(read_parts(drawn, kind, source, None, where), list(parts), source, kind, where, alone=False)
    return read.rows


class _Drawn(NamedTuple):
    """A drawn row, or why it cannot be read."""

    split: str
    place: str
    number: int
    row: Any


def _drawn(rows: Iterable[_Drawn], count: int) -> list[_Drawn]:
    """Return `count` of the rows."""
    rng, sample = random.Random(0), list[_Drawn]()
    for seen, row in enumerate(rows, 1):
        place = seen - 1 if seen <= count else rng.randrange(seen)
        if place < count:
            sample[place : place + 1] = [row]
    return sample


def _given(rows: Sequence[Numbered], columns: Columns) -> Iterator[Numbered]:
    for number, row in rows:
        columns.seen.update(dict.fromkeys(row if isinstance(row, dict) else ()))
        yield number, row


def _unsaid(line: str) -> None:
    """Print nothing, because the stage prints this line."""


def _is_large_json(part: Part) -> bool:
    return part.place.lower().endswith(".json") and Path(part.place).stat().st_size > _LARGE_JSON


def _first_of(part: Part, cut: list[str]) -> Part:
    """Return the first rows of a part. The part's place is added to `cut` if it has more rows."""

    def read(columns: Columns) -> Iterator[Numbered]:
        for number, row in part.read(columns):
            if number > FIRST:
                cut.append(part.place)
                columns.complete = not part.place.lower().endswith(".jsonl")
                return
            yield number, row

    return Part(part.place, read)
