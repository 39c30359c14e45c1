"""Read the user's files row by row with row numbers: parquet, jsonl, json, csv and Arrow."""

from __future__ import annotations

import codecs
import csv
import io
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final

import pyarrow as pa
import pyarrow.parquet as pq

from posttrain.data.parquet import DECODE_ERRORS, check_decoded_size, check_size, ran_out_of_memory
from posttrain.data.shown import printable, short_repr
from posttrain.errors import FREE_MEMORY, DataError
from posttrain.files import free_memory
from posttrain.pipeline.tables.arrow_sizes import AFTER_MAGIC, MAGIC, shared_size, unpacked_sizes
from posttrain.pipeline.tables.failures import first_line

Row = dict[str, Any]
Numbered = tuple[int, Row | str]
"""A row's number, from 1, with the row or the reason why it cannot be read."""

_BATCH: Final = 4096
_BOM: Final = b"\xef\xbb\xbf"
LONGEST_LINE: Final = 64 * 2**20
"""The most bytes of a line. A longer one is probably not a table row and would need many times as much memory."""
_MEMORY_OF_JSON: Final = 8
"""Bytes of memory per byte of a .json file, which is read completely."""
_CONVERSATION: Final = re.compile(r"""\[\s*\{\s*["'](role|content)["']\s*:""")


@dataclass(frozen=True)
class CsvDialect:
    """The format of a csv file."""

    separator: str | None = None
    """The separator between cells; None: a comma."""
    encoding: str | None = None
    """The encoding; None: UTF-8, with or without a byte order mark."""


PLAIN: Final = CsvDialect()


@dataclass
class Columns:
    """The columns that posttrain reads from a file, and the columns in the file."""

    wanted: frozenset[str]
    seen: dict[str, None] = field(default_factory=dict)
    complete: bool = True
    """True if unread rows cannot have other columns."""


@dataclass(frozen=True)
class Part:
    """A file, or one split of a Hub data set."""

    place: str
    read: Callable[[Columns], Iterator[Numbered]]

    def rows(self, columns: Columns, where: str) -> Iterator[Numbered]:
        """Yield the rows with their numbers. If a file cannot be read, the error names it."""
        try:
            yield from self.read(columns)
        except DataError:
            raise
        except DECODE_ERRORS as error:
            what = f"{self.place} cannot be read ({first_line(error)})"
            fix = FREE_MEMORY if ran_out_of_memory(error) else "Fix the file"
            raise DataError(what=what, where=where, fix=fix) from error


def file_part(file: Path, dialect: CsvDialect = PLAIN) -> Part:
    """Return a file as a part. Its suffix must be in `READERS`."""
    suffix = file.suffix.lower()
    if dialect != PLAIN and suffix != ".csv":
        what = f"separator and encoding apply only to csv files, and {printable(str(file))} is not a csv file"
        raise DataError(what=what, where=str(file), fix="Remove them, or list only csv files")
    reader = READERS[suffix] if suffix != ".csv" else partial(_read_csv, dialect=dialect)

    def read(columns: Columns) -> Iterator[Numbered]:
        # opened here, because libraries read names with '*' or '://' in them as patterns and URLs
        with file.open("rb") as stream:
            for number, row in reader(stream, columns):
                if isinstance(row, dict) and not row.keys() <= columns.seen.keys():
                    columns.seen.update(dict.fromkeys(row))
                yield number, row

    return Part(printable(str(file)), read)


def arrow_rows(batches: Iterable[pa.RecordBatch], columns: Columns, names: Sequence[str] = ()) -> Iterator[Numbered]:
    """Yield the rows of Arrow batches with the wanted columns. `names`: the columns, if already known."""
    columns.seen.update(dict.fromkeys(_unique(names)))
    number = size = 0
    allowed = int(free_memory() / 3)
    for batch in batches:
        columns.seen.update(dict.fromkeys(_unique(batch.schema.names)))
        wanted = [name for name in batch.schema.names if name in columns.wanted]
        chosen = batch.select(wanted)
        for start in range(0, chosen.num_rows, _BATCH):
            few = chosen.slice(start, _BATCH)
            few.validate(full=True)
            size += sum(map(shared_size, few.columns))
            check_size(size, allowed)
            for row in few.to_pylist():
                number += 1
                yield number, row


def _read_parquet(stream: BinaryIO, columns: Columns) -> Iterator[Numbered]:
    # pyarrow, because polars does not verify checksums and panics on some damaged files
    with pq.ParquetFile(stream, page_checksum_verification=True) as parquet:
        names = parquet.schema_arrow.names
        wanted = [name for name in names if name in columns.wanted]
        check_decoded_size(stream, wanted)
        yield from arrow_rows(parquet.iter_batches(_BATCH, columns=wanted), columns, names)


def _read_arrow(stream: BinaryIO, columns: Columns) -> Iterator[Numbered]:
    start, allowed, size = AFTER_MAGIC if stream.read(len(MAGIC)) == MAGIC else 0, int(free_memory() / 3), 0
    for part in unpacked_sizes(stream, start):
        size += part
        check_size(size, allowed)
    stream.seek(0)
    batches = pa.ipc.open_file(stream).num_record_batches if start else None
    stream.seek(start)  # the messages in their order: the index at a file's end could name one a million times
    reader, read = pa.ipc.open_stream(stream), list[int]()

    def counted() -> Iterator[pa.RecordBatch]:
        for batch in reader:
            read.append(batch.num_rows)
            yield batch

    yield from arrow_rows(counted(), columns, reader.schema.names)
    if batches not in (None, len(read)):
        raise ValueError(f"its index lists {batches:,} batches, but the file has {len(read):,}")


def _read_jsonl(stream: BinaryIO, columns: Columns) -> Iterator[Numbered]:  # noqa: ARG001
    for number, line in _lines(stream):
        text = (line.removeprefix(_BOM) if number == 1 else line).strip()
        if not text:
            continue
        try:
            row = _parsed(text)
        except ValueError as error:
            yield number, f"{error}; write one JSON object per line"
            continue
        yield number, row if isinstance(row, dict) else "not a JSON object; write one JSON object per line"


def _read_json(stream: BinaryIO, columns: Columns) -> Iterator[Numbered]:  # noqa: ARG001
    size, allowed = os.fstat(stream.fileno()).st_size, free_memory() // _MEMORY_OF_JSON
    if size > allowed:
        raise ValueError(f"it has {size / 1e9:.1f} GB, too much to read at once; write .jsonl, one object per line")
    try:
        rows = _parsed(stream.read().removeprefix(_BOM))
    except ValueError as error:
        hint = "; a file with one object per line must end in .jsonl" if "Extra data" in str(error) else ""
        raise ValueError(f"{error}{hint}") from error
    if not isinstance(rows, list):
        raise ValueError("a .json file must hold a list of objects")  # noqa: TRY004 - one error for what cannot be read
    for number, row in enumerate(rows, 1):
        yield number, row if isinstance(row, dict) else "not a JSON object; give a list of objects"


def _read_csv(stream: BinaryIO, columns: Columns, dialect: CsvDialect = PLAIN) -> Iterator[Numbered]:
    csv.field_size_limit(LONGEST_LINE)
    separator = dialect.separator or ","
    lines = _decoded_lines(stream) if dialect.encoding is None else _lines_in(stream, dialect.encoding)
    of_row: list[str] = []
    reader = csv.reader(_collected(_without_hint(lines, separator), of_row), strict=True, delimiter=separator)
    try:
        header = _without_empty_end(next((cells for cells in reader if cells), []), 0)
        _check_header(header, dialect)
        columns.seen.update(dict.fromkeys(_unique(header)))
        ended = reader.line_num
        of_row.clear()
        for cells in reader:
            number, ended = ended + 1, reader.line_num  # a quoted cell may span several lines
            of_row.clear()
            if cells:
                yield number, _csv_row(header, cells, separator)
    except csv.Error as error:
        raise ValueError(_wrong_quote(of_row, separator, reader.line_num, str(error))) from error


def _collected(lines: Iterator[str], into: list[str]) -> Iterator[str]:
    for line in lines:
        into.append(line)
        yield line


def _wrong_quote(lines: Sequence[str], separator: str, ended: int, error: str) -> str:
    """Return an error for a row in these lines, with the line where its cell opens. `ended`: the last line."""
    text = "".join(lines)
    quoted = [*re.finditer(rf'(?:^|[\n{re.escape(separator)}])(?P<open>")(?:[^"]|"")*+', text)]
    if not quoted:
        return f"line {ended}: {error}"
    opens = ended - len(lines) + 1 + text.count("\n", 0, quoted[-1].start("open"))
    return (
        f"line {opens}: the quote that opens there is not closed (line {ended}: {error}). Close it, or write it twice"
    )


def _without_hint(lines: Iterator[str], separator: str) -> Iterator[str]:
    """Yield the lines. Excel's first line `sep=;`, which sets the separator, becomes empty."""
    for number, line in enumerate(lines):
        yield "\n" if number == 0 and line.strip() == f"sep={separator}" else line


def _check_header(header: list[str], dialect: CsvDialect) -> None:
    """Reject a header that was not split into columns, and suggest the option that splits it."""
    name, used = header[0] if header else "", dialect.separator
    separator = next((mark for mark in (*_SEPARATORS, ",") if len(header) == 1 and mark in name and mark != used), None)
    if separator is not None and (used or separator != ","):
        shown = json.dumps(separator)
        if used is not None:
            what = f"its header is one column, {short_repr(name)}: separator: {json.dumps(used)} does not split it"
            raise ValueError(f"{what}. Write {f'separator: {shown}' if separator != ',' else 'no separator'}")
        raise ValueError(
            f"its header is one column, {short_repr(name)}. If {shown} separates the cells, set separator: {shown}"
        )


_SEPARATORS: Final = (";", "\t", "|")
"""Separators that csv files use instead of commas."""


def _without_empty_end(cells: list[str], least: int) -> list[str]:
    """Return the cells without empty ones at the end, which spreadsheets write for formerly used columns."""
    end = len(cells)
    while end > least and not cells[end - 1].strip():
        end -= 1
    return cells[:end]


def _csv_row(header: list[str], cells: list[str], separator: str) -> Row | str:
    cells = _without_empty_end(cells, len(header))
    if len(cells) != len(header):
        between = "a comma" if separator == "," else f"the separator {separator!r}"
        return f"it has {len(cells)} cells, but the header has {len(header)}; quote cells that contain {between}"
    if any(_CONVERSATION.match(cell) for cell in cells if cell.startswith("[")):
        return "a cell holds a conversation as text, which csv cannot store; use jsonl or parquet"
    return {name: cell for name, cell in zip(header, cells, strict=True) if cell}


def _lines(stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield the lines with their numbers. A line that is too long is rejected before it is read completely."""
    for number, line in enumerate(iter(partial(stream.readline, LONGEST_LINE + 1), b""), 1):
        if len(line) > LONGEST_LINE:
            raise ValueError(f"line {number} is longer than {LONGEST_LINE // 2**20} MB")
        yield number, line


def _decoded_lines(stream: BinaryIO) -> Iterator[str]:
    for number, line in _lines(stream):
        if number == 1 and b"\0" in line and not line.startswith(_BOMS_16):
            raise ValueError("it is UTF-16 or not text. If it is UTF-16, set encoding: utf-16-le")
        try:
            yield (line.removeprefix(_BOM) if number == 1 else line).decode("utf-8")
        except UnicodeDecodeError as error:
            is_16 = number == 1 and line.startswith(_BOMS_16)
            fix = "it is UTF-16: set encoding: utf-16" if is_16 else "set its encoding, e.g. cp1252 for Excel"
            raise ValueError(f"line {number}: {_not_utf8(error)}; {fix}") from error


_BOMS_16: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


_CONTROLS: Final = re.compile("[\x80-\x84\x86-\x9f]")
"""Latin-1 control characters where cp1252 has the euro sign and quotes, without the line end of mainframes."""


_ONE_BYTE: Final = re.compile("cp(125|437|85)|iso8859|latin|mac|koi8")


def _is_utf8(line: str, encoding: str) -> bool:
    """Tell whether a line contains multi-byte UTF-8 letters, which a one-byte encoding would also accept."""
    if line.isascii() or not _ONE_BYTE.match(codecs.lookup(encoding).name):
        return False
    try:
        return len(line.encode(encoding).decode("utf-8")) < len(line)
    except UnicodeError:
        return False


def _lines_in(stream: BinaryIO, encoding: str) -> Iterator[str]:
    """Yield the lines of a file in another encoding."""
    text, latin = io.TextIOWrapper(stream, encoding, newline="\n"), codecs.lookup(encoding).name == "iso8859-1"
    try:
        for number, line in enumerate(iter(partial(text.readline, LONGEST_LINE + 1), ""), 1):
            if len(line) > LONGEST_LINE:
                raise ValueError(f"line {number} is longer than {LONGEST_LINE // 2**20} MB")
            if latin and (control := _CONTROLS.search(line)):
                what = f"line {number}: byte 0x{ord(control[0]):02x} is a control character in {encoding}"
                raise ValueError(f"{what}; set encoding: cp1252, which Excel uses")
            if _is_utf8(line, encoding):
                raise ValueError(f"line {number} is UTF-8, not {encoding}: remove encoding")
            yield line.removeprefix("\ufeff") if number == 1 else line
    except UnicodeError as error:
        raise ValueError(f"not {encoding} ({error}); set another encoding") from error
    finally:
        if not text.closed and not stream.closed:
            text.detach()


def _parsed(data: bytes) -> Any:
    """Return the JSON value. Repeated keys and NaN are errors. Errors show the place."""
    try:
        return _JSON.decode(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{f'line {line}: ' if line > 1 else ''}{_not_utf8(error)}") from error
    except json.JSONDecodeError as error:
        at = f"line {error.lineno} column" if error.lineno > 1 else "column"
        raise ValueError(f"not valid JSON ({error.msg}, {at} {error.colno})") from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _not_utf8(error: UnicodeDecodeError) -> str:
    return f"not UTF-8 (byte 0x{error.object[error.start]:02x})"


def _object(pairs: list[tuple[str, Any]]) -> Row:
    row = dict(pairs)
    if len(row) != len(pairs):
        _unique([key for key, _ in pairs])
    return row


def _constant(name: str) -> None:
    raise ValueError(f"{name} is not a number in JSON")


def _unique(names: Sequence[str]) -> Sequence[str]:
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise ValueError(f"the name {short_repr(twice)} occurs twice")
    return names


_JSON: Final = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant)

BY_LINE: Final = (".jsonl", ".csv")
"""File types whose rows are counted by line, as in an editor."""
READERS: Final[dict[str, Callable[[BinaryIO, Columns], Iterator[Numbered]]]] = {
    ".parquet": _read_parquet,
    ".jsonl": _read_jsonl,
    ".json": _read_json,
    ".csv": _read_csv,
    ".arrow": _read_arrow,
}


def place_of(file: str, line: int) -> str:
    """Return the place of a row: its file, and its line as an editor counts lines."""
    return f"{file} {'line' if file.lower().endswith(BY_LINE) else 'row'} {line}"
