"""Reads and writes checked tables: atomic, the same bytes for the same rows, rejected rows in a file of their own.

A damaged file raises an error; it never makes polars panic.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, Final

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from posttrain.data.columns import COLUMNS, Kind
from posttrain.errors import FREE_MEMORY, VERIFY, DataError, TableError, lacks_resources, shortened
from posttrain.files import atomic_path, free_memory
from posttrain.measure.phases import phase
from posttrain.pipeline.fsync import sync
from posttrain.settings.plain import TABLES, UPGRADE, check_format
from posttrain.tables.failures import Failure, failure_lines, rejected_rows, row_failures, structure_failures
from posttrain.tables.parquet_pages import page_sizes

_MAGIC: Final = b"PAR1"
_OUTPUTS: Final = ("data", "metrics", "results", "rollouts")
_SMALLEST: Final = 12
"""The magic at both ends and the length of the footer."""


def read_results(file: Path, label: str) -> pl.DataFrame:
    """Return the rollouts of an evaluated policy; raise if another policy's rollouts are in its place."""
    rows = read_table(file, "rollouts")
    if others := sorted(set(rows["policy"]) - {label}):
        raise DataError(what=f"its rows are of the policy {others[0]}, not of {label}", where=str(file), fix=VERIFY)
    return rows


@phase("load")
def read_table(path: Place, kind: Kind) -> pl.DataFrame:
    """Return the checked table at `path`."""
    file = Path(path)
    _check_container(file)
    try:
        written, frame = table_format(file), decode(file)
    except DECODE_ERRORS as error:
        reason = shortened(str(error), 200)
        if ran_out_of_memory(error):
            what = f"the memory ran out while it was read ({reason})"
            raise TableError(what=what, where=str(file), fix=FREE_MEMORY) from error
        raise _damaged(file, f"parquet cannot be decoded ({reason})") from error
    check_format(written, TABLES, str(file), TableError)
    if written < TABLES and structure_failures(frame, kind):
        what = f"an earlier version of posttrain wrote it (table format {written}), with other columns"
        raise TableError(what=what, where=str(file), fix=f"{UPGRADE}, or make it again: `dvc repro`")
    return check_table(frame, kind, file)


@phase("write")
def write_table(frame: pl.DataFrame, path: Place, kind: Kind) -> None:
    """Check the table and write it to `path`, whole or not at all."""
    write_parquet(check_table(frame, kind, path), path)


@phase("write")
def write_tables(
    tables: Mapping[Kind, pl.DataFrame], folder: Path, notes: Mapping[Kind, str] = MappingProxyType({})
) -> None:
    """Write checked tables to folder/KIND.parquet, with notes in JSON; the folder appears whole or not at all."""
    with atomic_path(folder) as temporary:
        for kind, frame in tables.items():
            write_parquet(frame, temporary / f"{kind}.parquet", notes.get(kind, ""))


def check_table(frame: pl.DataFrame, kind: Kind, path: Place) -> pl.DataFrame:
    """The frame if every rule of its kind holds; otherwise an error, and rejected rows in a file next to `path`."""
    file = Path(path)
    structure = structure_failures(frame, kind)
    if structure:
        lines = "\n  ".join(structure)
        fix = f"Give it exactly the columns of a '{kind}' table, in this order: {', '.join(COLUMNS[kind])}"
        raise TableError(what=f"wrong columns for a '{kind}' table:\n  {lines}", where=str(file), fix=fix)
    if frame.is_empty():
        raise TableError(what=f"the '{kind}' table has no rows", where=str(file), fix="Give it at least one row")
    failures = row_failures(frame, kind)
    if failures:
        raise _rejection(frame, kind, file, failures)
    rejected_path(file).unlink(missing_ok=True)
    return frame


def check_disjoint(frames: Mapping[str, pl.DataFrame]) -> None:
    """Refuse tables in which, taken together, a problem or an id is in two splits."""
    for column in ("problem", "id"):
        parts = [
            frame.select(pl.col(column).alias("key"), "split", table=pl.lit(name))
            for name, frame in frames.items()
            if {column, "split"} <= set(frame.columns)
        ]
        if not parts:
            continue
        rows, split = pl.concat(parts), pl.col("split")
        leaked = rows.filter(split.min().over("key") != split.max().over("key")).unique(maintain_order=True)
        if leaked.height:
            places = (split + " (" + pl.col("table") + ")").str.join(", ")
            keys = leaked.group_by("key", maintain_order=True).agg(places).rows()
            listed = "\n  ".join(f"{column} '{key[:60]}' is in {where}" for key, where in keys[:10])
            raise TableError(
                what=f"{len(keys):,} {column}{'s are' if len(keys) > 1 else ' is'} in more than one split:\n  {listed}",
                where=", ".join(frames),
                fix="Give every table a `split` column, or none (rename: {split: other} ignores it)",
            )


def rejected_path(path: Place) -> Path:
    """Return the file for the rejected rows of the table at `path`; not in the folders of outputs, which DVC tracks."""
    file = Path(path)
    folder = Path("rejected" if not file.is_absolute() and file.parts[0] in _OUTPUTS else "")
    return (folder / file).with_suffix(".rejected.parquet")


def _check_container(file: Path) -> None:
    if not file.is_file():
        what = "it is a folder, not a table" if file.is_dir() else "table not found"
        raise TableError(what=what, where=str(file), fix="Run the stage that makes it: dvc repro")
    try:
        with file.open("rb") as stream:
            head = stream.read(len(_MAGIC))
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, size - len(_MAGIC)))
            tail = stream.read()
    except OSError as error:
        fix = "Fix the file's permissions"
        raise TableError(what=f"the table cannot be read ({error})", where=str(file), fix=fix) from error
    if head != _MAGIC:
        raise _damaged(file, f"not a parquet file (it begins with {head!r}, not with {_MAGIC!r})")
    if size < _SMALLEST or tail != _MAGIC:
        raise _damaged(file, f"the file is cut off (it ends with {tail!r}, not with {_MAGIC!r})")


def _damaged(file: Path, what: str) -> TableError:
    return TableError(what=what, where=str(file), fix=VERIFY)


def _rejection(frame: pl.DataFrame, kind: Kind, file: Path, failures: list[Failure]) -> TableError:
    rejected, place = rejected_rows(frame, failures), rejected_path(file)
    total, lines = sum(len(failure.rows) for failure in failures), failure_lines(frame, failures)
    more = [f"and {total - len(lines):,} more"] if total > len(lines) else []
    count = f"{total:,} failure{'s' * (total > 1)} in {rejected.height:,} of {frame.height:,} rows"
    try:
        write_parquet(rejected, place)
        fix = f"Fix or drop these rows; they are listed with their reasons in {place}"
    except TableError as error:
        fix = f"Fix or drop these rows; the list of them could not be written ({error.what})"
    listed = "\n  ".join([*lines, *more])
    return TableError(what=f"{count} break the rules of a '{kind}' table:\n  {listed}", where=str(file), fix=fix)


Place = str | os.PathLike[str]

ALLOCATION: Final = re.compile(r"alloc of size (\d+) failed")

DECODE_ERRORS: Final = (
    pa.ArrowException,
    pl.exceptions.PolarsError,
    pl.exceptions.PanicException,
    OSError,
    ValueError,
    MemoryError,
)
"""Everything that `decode` raises for a damaged file."""

FORMAT: Final = b"posttrain.format"
"""The key of the format version in a table's metadata."""
NOTE: Final = b"posttrain.note"
"""The key of what was counted when a table was made."""
_ROW_GROUP: Final = 65_536
_BATCH: Final = 4096
_WIDTH: Final = 8
"""Bytes of every decoded value, whatever its type, in addition to a text's own bytes."""
_LARGEST_PAGE: Final = 512 * 2**20
"""Bytes of a page, which takes up to 8 times as much memory: writers begin another after a megabyte or 1024 rows."""
_SHARED: Final = {"PLAIN_DICTIONARY", "RLE_DICTIONARY", "DELTA_BYTE_ARRAY"}
"""Encodings that store a text once and use it for many rows."""


def ran_out_of_memory(error: BaseException) -> bool:
    """Return whether a healthy file can have raised this: a damaged one asks for more than the machine has."""
    wanted, memory = ALLOCATION.search(str(error)), os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return lacks_resources(error) and not (wanted and int(wanted[1]) > memory)


def decode(file: Path) -> pl.DataFrame:
    """Return the file's table, its pages verified where they have checksums; damage raises one of `DECODE_ERRORS`."""
    # pyarrow, because polars prints a panic of its own on some damaged files and does not verify checksums
    with _opened(file) as stream, pq.ParquetFile(stream, page_checksum_verification=True) as parquet:
        arrow = parquet.read().replace_schema_metadata(None)
    arrow.validate(full=True)
    for field in arrow.schema:
        _decode_names(field)
    return pl.DataFrame(pl.from_arrow(arrow))


def table_format(file: Path) -> int:
    """Return the format version in a table's metadata, by default 1. Damage raises one of `DECODE_ERRORS`."""
    with _opened(file) as stream:
        return int((pq.read_schema(stream).metadata or {}).get(FORMAT, b"1"))


def _opened(file: Path) -> pa.OSFile:
    """Open a file for pyarrow, which takes a name that is not UTF-8 only as bytes."""
    return pa.OSFile(os.fsencode(file))


def check_decoded_size(stream: BinaryIO, columns: Collection[str], limit: int | None = None) -> None:
    """Refuse a file whose columns would decode to more than `limit` bytes, by default a third of the free memory.

    A page of it may not be too large either. A few megabytes can decode to many gigabytes: a text that is stored once
    and used by every row. The pages give an exact size for all but such texts; where they may be too large they are
    measured, without decoding them.
    """
    allowed = int(free_memory() / 3) if limit is None else limit
    size, unsure = 0, []
    with pq.ParquetFile(stream) as parquet:
        footer = parquet.metadata
        for group in range(footer.num_row_groups):
            for nth in range(footer.num_columns):
                chunk = footer.row_group(group).column(nth)
                if chunk.path_in_schema.split(".")[0] in columns:
                    stored = _unpacked_size(stream, chunk, min(_LARGEST_PAGE, allowed * 3 // 8))
                    stored = max(stored, chunk.total_uncompressed_size)
                    size += max(stored, chunk.num_values * _WIDTH)
                    most = chunk.num_values * stored
                    if _SHARED & set(chunk.encodings) and most > allowed // footer.num_row_groups // footer.num_columns:
                        unsure.append((group, chunk.path_in_schema, stored))
    check_size(size, allowed)
    for group, path, stored in unsure:
        texts = 0
        for length in _text_lengths(stream, group, path):
            texts += length
            check_size(size + texts - stored, allowed)
        size += max(0, texts - stored)


def _unpacked_size(stream: BinaryIO, chunk: Any, most: int) -> int:
    """Return the bytes of a column chunk's pages when they are unpacked; refuses a page that is too large."""
    start, size = chunk.data_page_offset, 0
    if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < start:
        start = chunk.dictionary_page_offset
    for page in page_sizes(stream, start, chunk.total_compressed_size):
        if page > most:
            what = f"column {chunk.path_in_schema} has a page of {page / 1e9:.2f} GB, as for a cell that is too large"
            raise ValueError(f"{what}; a page may have {most / 1e9:.2f} GB. Write smaller cells or pages")
        size += page
    return size


def check_size(size: int, allowed: int) -> None:
    """Refuse a file that is larger in memory than is allowed."""
    if size > allowed:
        raise ValueError(
            f"it decodes to {size / 1e9:.1f} GB or more, and at most {allowed / 1e9:.1f} GB fit in the free memory"
        )


def _text_lengths(stream: BinaryIO, group: int, path: str) -> Iterator[int]:
    """Yield the bytes of a column's texts, batch by batch, read as a dictionary and its indices."""
    with pq.ParquetFile(stream, read_dictionary=[path]) as parquet:
        for batch in parquet.iter_batches(_BATCH, row_groups=[group], columns=[path]):
            leaf = batch.column(0)
            while not pa.types.is_dictionary(leaf.type) and leaf.type.num_fields:
                leaf = leaf.flatten()[0] if pa.types.is_struct(leaf.type) else leaf.flatten()
            if pa.types.is_dictionary(leaf.type):
                yield pc.sum(pc.take(pc.binary_length(leaf.dictionary), leaf.indices)).as_py() or 0
            else:
                yield leaf.nbytes


@phase("write")
def write_parquet(frame: pl.DataFrame, path: Place, note: str = "") -> None:
    """The frame as parquet, atomically and with the same bytes for the same content; `note`: JSON about the table."""
    file = Path(path)
    try:
        with atomic_path(file) as temporary:
            with temporary.open("wb") as stream:
                schema = _arrow(frame.clear(), note).schema
                with pq.ParquetWriter(
                    stream, schema, compression="zstd", compression_level=3, write_page_checksum=True
                ) as writer:
                    for part in frame.iter_slices(_ROW_GROUP) if frame.height else [frame]:
                        writer.write_table(_arrow(part, note))
            sync(temporary)
        sync(file)
    except (OSError, pa.ArrowException, pl.exceptions.PolarsError) as error:
        raise TableError(
            what=f"the table cannot be written ({error})",
            where=str(file),
            fix="Free some disk space or fix the folder's permissions",
        ) from error


def _arrow(frame: pl.DataFrame, note: str) -> pa.Table:
    table = frame.rechunk().to_arrow(compat_level=pl.CompatLevel.oldest())
    return table.replace_schema_metadata({FORMAT: str(TABLES), **({NOTE: note} if note else {})})


def read_note(file: Path) -> dict[str, Any]:
    """Return the note in a table's metadata; empty where it has none, or where there is no table that can be read."""
    try:
        with _opened(file) as stream:
            note = (pq.read_schema(stream).metadata or {}).get(NOTE)
    except DECODE_ERRORS:
        return {}
    found: dict[str, Any] = json.loads(note) if note else {}
    return found


def _decode_names(field: pa.Field) -> None:
    """Raise for a name that is not UTF-8, where polars would panic (as for such metadata, which is left out above)."""
    _ = field.name
    for nth in range(field.type.num_fields):
        _decode_names(field.type.field(nth))
