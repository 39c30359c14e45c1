"""Reads parts row by row into a frame that remembers each row's file and line, and the rows that were refused."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import polars as pl

from posttrain.errors import DataError
from posttrain.params import did_you_mean
from posttrain.tables.columns import Kind
from posttrain.tables.failures import printable, shown
from posttrain.tables.find_files import Parts
from posttrain.tables.layouts import NoLayoutError, convert, table_of, understood, wanted_columns
from posttrain.tables.readers import Columns, Part, Row
from posttrain.tables.source_columns import ColumnOptions
from posttrain.tables.turns import OddRowError

ORIGIN: Final = ("file", "line")
"""The columns that say where a row came from."""
SOURCE: Final = ("source", "given")
"""The source's name of the split that a row came from, and what its own column `split` says."""
_BATCH: Final = 8192


@dataclass
class Refused:
    """A row that is not in the frame."""

    file: str
    line: int
    reason: str


@dataclass
class Converted:
    """The rows of a source: those that were converted, and those that could not be."""

    frame: pl.DataFrame
    refused: list[Refused]
    limited: bool


def read_parts(parts: Parts, kind: Kind, shape: ColumnOptions, limit: int | None, where: str) -> Converted:
    """The rows of all parts, at most `limit` of each split."""
    shape.check(kind, wanted_columns(kind), where)
    reading = _Reading(kind, shape, limit, where)
    for source, some in parts.items():
        for part in some:
            reading.add(source, part)
    return reading.done()


@dataclass
class _Reading:
    kind: Kind
    shape: ColumnOptions
    limit: int | None
    where: str
    frames: list[pl.DataFrame] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    columns: dict[str, None] = field(default_factory=dict)
    taken: Counter[tuple[str, str | None]] = field(default_factory=Counter)
    limited: bool = False
    laid_out: bool = False
    """Whether some row had the columns of a layout."""

    def add(self, source: str, part: Part) -> None:
        columns = Columns(wanted_columns(self.kind) | self.shape.read)
        converted: list[Row] = []
        number = 0
        for number, read in part.rows(columns, self.where):
            row = self._shaped(read, part)
            given = row.get("split") if isinstance(row, dict) else None
            if not self._within_limit(source, given):
                if given is None:
                    break
                continue
            try:
                converted.append({**self._converted(row), "given": given, "line": number})
                self.laid_out = True
            except OddRowError as odd:
                self.laid_out |= not isinstance(odd, NoLayoutError)
                self.refused.append(Refused(part.place, number, printable(str(odd))))
            if len(converted) == _BATCH:
                self._flush(converted, source, part)
                converted = []
        if not number:
            raise DataError(what=f"{part.place} has no rows", where=self.where, fix="Give it rows or remove it")
        self._flush(converted, source, part)
        self._check_columns(columns, part)
        self.columns.update(columns.seen)

    def done(self) -> Converted:
        if not self.laid_out:
            names = ", ".join(map(printable, self.columns))
            raise DataError(
                what=f"the columns {names[:300] or '(none)'} are not a layout of a '{self.kind}' table",
                where=self.where,
                fix=f"Understood are: {understood(self.kind)}. Rename columns, e.g. rename: {{question: prompt}}, "
                "or make a text of them, e.g. template: {prompt: '{question}'}",
            )
        return Converted(pl.concat(self.frames, how="diagonal"), self.refused, self.limited)

    def _within_limit(self, source: str, given: Any) -> bool:
        key = (source, given if isinstance(given, str) else None)
        if self.taken[key] == self.limit:
            self.limited = True
            return False
        self.taken[key] += 1
        return True

    def _converted(self, row: Row | str) -> Row:
        if isinstance(row, str):
            raise OddRowError(row)
        if not isinstance(row.get("split", ""), str | None):
            raise OddRowError(f"'split' is {shown(row['split'])}; name a split, or rename the column if it is not one")
        return convert(row, self.kind)

    def _shaped(self, read: Row | str, part: Part) -> Row | str:
        """The row with the layout's columns, or why it has none."""
        if isinstance(read, str) or self.shape.plain:
            return read
        for old, new in self.shape.rename.items():
            if old in read and new in read and new not in self.shape.rename:
                what = f"'rename' turns '{old}' into '{new}', which {part.place} already has"
                raise DataError(what=what, where=self.where, fix=f"Rename '{new}' too")
        try:
            return self.shape.shaped(read)
        except OddRowError as odd:
            return str(odd)

    def _check_columns(self, columns: Columns, part: Part) -> None:
        missing = sorted(self.shape.read - columns.seen.keys())
        if missing:
            fix = printable(did_you_mean(missing[0], list(columns.seen)))
            use = self.shape.use_of(missing[0])
            raise DataError(what=f"{part.place} has no column '{missing[0]}' {use}", where=self.where, fix=fix)

    def _flush(self, rows: list[Row], source: str, part: Part) -> None:
        origin = {"given": pl.String(), "line": pl.UInt32()}
        columns = [pl.Series(name, [row[name] for row in rows], dtype=dtype) for name, dtype in origin.items()]
        frame = table_of(rows, self.kind).with_columns(*columns, source=pl.lit(source), file=pl.lit(part.place))
        self.frames.append(frame)
