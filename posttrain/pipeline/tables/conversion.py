"""Read parts row by row into a frame with each row's file and line, and collect the rejected rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import polars as pl

from posttrain.data.columns import Kind
from posttrain.data.layouts import NoLayoutError, convert_all, layout_names, table_of, wanted_columns
from posttrain.data.shown import printable, short_repr
from posttrain.data.turns import RowError
from posttrain.errors import DataError
from posttrain.files import format_size, free_memory
from posttrain.pipeline.tables.find_files import Parts
from posttrain.pipeline.tables.readers import Columns, Part, Row
from posttrain.pipeline.tables.source_columns import ColumnOptions
from posttrain.settings.params import did_you_mean

ORIGIN: Final = ("file", "line")
"""The columns with a row's origin."""
_BATCH: Final = 8192
_LATER: Final = 2.0
"""Bytes that splits, checks and writing need per byte of rows: 1.2 with a million rows, plus a margin."""


@dataclass
class RefusedRow:
    """A row that cannot be converted, and the reason."""

    file: str
    line: int
    reason: str


@dataclass
class ConvertedRows:
    """The converted rows of a source, and the rows that cannot be converted.

    `source`: the source's name of a row's split. `given`: the value of the row's own column `split`.
    """

    frame: pl.DataFrame
    refused: list[RefusedRow]
    limited: bool
    unwanted: int = 0
    """The number of rows that `where` excludes."""


def read_parts(parts: Parts, kind: Kind, columns: ColumnOptions, limit: int | None, where: str) -> ConvertedRows:
    """Return the rows of all parts, at most `limit` of each split."""
    columns.check(kind, wanted_columns(kind), where)
    reading = _Reading(kind, columns, limit, where)
    for source, some in parts.items():
        for part in some:
            reading.add(source, part)
    return reading.done()


_ASKS: Final = ("question", "query", "problem", "instruction", "input", "text")
"""Names that other data sets use for a prompt, most likely first."""
_ANSWERS: Final = ("answer", "response", "output", "solution", "target", "completion")


def _own_names(kind: Kind, names: Sequence[str]) -> str:
    """Return how columns of these names become a table's columns: by their own names, if these are common ones."""
    asked, said = (
        next((name for usual in all_usual for name in names if name.lower() == usual), None)
        for all_usual in (("prompt", *_ASKS), _ANSWERS)
    )
    ours = {"prompts": "answer", "chat": "completion"}.get(kind)
    renamed = {asked: "prompt", said: ours if asked != said else None}
    wanted = ", ".join(f"{old}: {new}" for old, new in renamed.items() if old and new and old != new)
    if asked and ours and (said or kind == "prompts") and wanted:
        alone = ". If all rows are for evaluation, name them: splits: {test: FILE}, its name without the ending"
        return f"Write rename: {{{printable(wanted)}}}{alone if kind == 'prompts' else ''}"
    other = "Rename yours, e.g. rename: {question: prompt}, or build a column, e.g. template: {prompt: '{question}'}"
    if asked and said and kind in ("pairs", "feedback"):
        return f"{other}. Questions with one answer each are a `chat` table, or `prompts` to evaluate on"
    return other


@dataclass
class _Reading:
    kind: Kind
    columns: ColumnOptions
    limit: int | None
    where: str
    frames: list[pl.DataFrame] = field(default_factory=list)
    refused: list[RefusedRow] = field(default_factory=list)
    file_columns: dict[str, None] = field(default_factory=dict)
    row_counts: Counter[tuple[str, str | None]] = field(default_factory=Counter)
    limited: bool = False
    unwanted: int = 0
    size: int = 0
    """The bytes of the kept rows."""
    has_layout: bool = False
    """True if any row has the columns of a layout."""

    def add(self, source: str, part: Part) -> None:
        file_columns = Columns(wanted_columns(self.kind) | self.columns.read)
        converted: list[Row] = []
        number = 0
        for number, read in part.rows(file_columns, self.where):
            wanted = self._wanted(read)
            if not wanted:
                self.unwanted += 1
                continue
            row = wanted if isinstance(wanted, str) else self._shaped(read, part)
            given = row.get("split") if isinstance(row, dict) else None
            if not self._within_limit(source, given):
                if given is None:
                    file_columns.complete &= not part.place.lower().endswith(".jsonl")  # later rows may have more
                    break
                continue
            try:
                converted += [{**part, "given": given, "line": number} for part in self._converted(row)]
                self.has_layout = True
            except RowError as error:
                self.has_layout |= not isinstance(error, NoLayoutError)
                self.refused.append(RefusedRow(part.place, number, printable(str(error))))
            if len(converted) >= _BATCH:
                self._flush(converted, source, part)
                converted = []
        if not number:
            raise DataError(what=f"{part.place} has no rows", where=self.where, fix="Give it rows or remove it")
        self._flush(converted, source, part)
        self._check_columns(file_columns, part)
        self.file_columns.update(file_columns.seen)

    def done(self) -> ConvertedRows:
        if self.unwanted and not self.has_layout and not self.refused:
            what = f"`where` matches none of the {self.unwanted:,} rows"
            raise DataError(what=what, where=self.where, fix="Use values that occur in the column, or remove `where`")
        if not self.has_layout:
            names = ", ".join(map(printable, self.file_columns))
            known = sorted(wanted_columns(self.kind))
            unknown = next((name for name in self.columns.rename.values() if name not in known), None)
            if unknown is not None:
                what = f"rename makes a column '{printable(unknown)}', which no layout of a '{self.kind}' table has"
                raise DataError(what=what, where=self.where, fix=did_you_mean(unknown, known))
            raise DataError(
                what=f"a '{self.kind}' table cannot be made from the columns {names[:300] or '(none)'}",
                where=self.where,
                fix=f"It needs the columns {layout_names(self.kind)}. {_own_names(self.kind, list(self.file_columns))}",
            )
        return ConvertedRows(pl.concat(self.frames, how="diagonal"), self.refused, self.limited, self.unwanted)

    def _wanted(self, read: Row | str) -> bool | str:
        """Tell whether `where` keeps a row, or why this cannot be decided."""
        if isinstance(read, str) or not self.columns.where:
            return True
        try:
            return self.columns.keeps(read)
        except RowError as error:
            return str(error)

    def _within_limit(self, source: str, given: Any) -> bool:
        key = (source, given if isinstance(given, str) else None)
        if self.row_counts[key] == self.limit:
            self.limited = True
            return False
        self.row_counts[key] += 1
        return True

    def _converted(self, row: Row | str) -> list[Row]:
        if isinstance(row, str):
            raise RowError(row)
        if not isinstance(row.get("split", ""), str | None):
            value = short_repr(row["split"])
            raise RowError(f"'split' is {value}, not a name; give the name of a split, or rename the column")
        return convert_all(row, self.kind)

    def _shaped(self, read: Row | str, part: Part) -> Row | str:
        """Return the row with the layout's columns, or why it has none."""
        if isinstance(read, str) or self.columns.plain:
            return read
        for old, new in self.columns.rename.items():
            if old in read and new in read and new not in self.columns.rename:
                what = f"'{old}' cannot be renamed to '{new}': {part.place} already has a column '{new}'"
                raise DataError(what=what, where=self.where, fix=f"Rename '{new}' too")
        try:
            return self.columns.apply(read)
        except RowError as error:
            return str(error)

    def _check_columns(self, file_columns: Columns, part: Part) -> None:
        missing = sorted(self.columns.read - file_columns.seen.keys())
        if missing and (file_columns.complete or not self.has_layout):
            names = list(map(printable, file_columns.seen))
            what = f"{part.place} has no column '{missing[0]}' {self.columns.use_of(missing[0])}; it has "
            fix = self.columns.suggestion(missing[0], names)
            raise DataError(what=f"{what}{', '.join(names)[:300] or 'no columns'}", where=self.where, fix=fix)

    def _flush(self, rows: list[Row], source: str, part: Part) -> None:
        origin = {"given": pl.String(), "line": pl.UInt32()}
        file_columns = [pl.Series(name, [row[name] for row in rows], dtype=dtype) for name, dtype in origin.items()]
        frame = table_of(rows, self.kind).with_columns(*file_columns, source=pl.lit(source), file=pl.lit(part.place))
        self.frames.append(frame)
        self.size += int(frame.estimated_size())
        if self.size * _LATER > free_memory():
            read, later = sum(frame.height for frame in self.frames), format_size(self.size * _LATER)
            what = (
                f"the first {read:,} rows take {format_size(self.size)} of memory, and the rest needs {later} more "
                "than is free"
            )
            fix = "Every stage reads whole tables into memory. Use fewer rows (`limit`, `where`) or a larger machine"
            raise DataError(what=what, where=self.where, fix=fix)
