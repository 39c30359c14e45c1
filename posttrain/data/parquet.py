"""Read and write parquet files: atomic, equal bytes for equal rows, verified checksums.

A damaged file raises one of `DECODE_ERRORS`; it never makes polars panic.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from posttrain.data.parquet_pages import page_sizes
from posttrain.errors import TableError, lacks_resources
from posttrain.files import atomic_path, free_memory, sync
from posttrain.measure.phases import phase
from posttrain.settings.plain import TABLES

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
"""All errors that `decode` raises for a damaged file."""

FORMAT: Final = b"posttrain.format"
"""The metadata key of a table's format version."""
_ROW_GROUP: Final = 65_536
_BATCH: Final = 4096
_WIDTH: Final = 8
"""Bytes per decoded value of any type, besides a text's own bytes."""
_LARGEST_PAGE: Final = 512 * 2**20
"""Maximum number of bytes of a page. A page needs up to 8 times as much memory. Writers start a new page after 1 MB or
1024 rows."""
_SHARED: Final = {"PLAIN_DICTIONARY", "RLE_DICTIONARY", "DELTA_BYTE_ARRAY"}
"""Encodings that store a text once and use it in many rows."""


def ran_out_of_memory(error: BaseException) -> bool:
    """Tell whether an intact file can raise this error. A damaged file may request more memory than the machine has."""
    wanted, memory = ALLOCATION.search(str(error)), os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return lacks_resources(error) and not (wanted and int(wanted[1]) > memory)


def decode(file: Path) -> pl.DataFrame:
    """Return the file's table. Pages with checksums are verified. Damage raises one of `DECODE_ERRORS`."""
    # pyarrow, because polars prints a panic of its own on some damaged files and does not verify checksums
    with _opened(file) as stream, pq.ParquetFile(stream, page_checksum_verification=True) as parquet:
        arrow = parquet.read().replace_schema_metadata(None)
    arrow.validate(full=True)
    for field in arrow.schema:
        _decode_names(field)
    return pl.DataFrame(pl.from_arrow(arrow))


def table_format(file: Path) -> int:
    """Return the format version in a table's metadata; default 1. Damage raises one of `DECODE_ERRORS`."""
    with _opened(file) as stream:
        return int((pq.read_schema(stream).metadata or {}).get(FORMAT, b"1"))


def _opened(file: Path) -> pa.OSFile:
    """Open a file for pyarrow, which accepts names that are not UTF-8 only as bytes."""
    return pa.OSFile(os.fsencode(file))


def check_decoded_size(stream: BinaryIO, columns: Collection[str], limit: int | None = None) -> None:
    """Reject a file whose columns would decode to more than `limit` bytes; default: a third of the free memory.

    Single pages are limited too. A few megabytes can decode to many gigabytes if every row uses a text that is stored
    once. Page headers give the exact size except for such texts. If those may be too large, they are measured without
    decoding.
    """
    allowed = int(free_memory() / 3) if limit is None else limit
    size, unsure = 0, []
    with pq.ParquetFile(stream) as parquet:
        footer = parquet.metadata
        for group in range(footer.num_row_groups):
            for index in range(footer.num_columns):
                chunk = footer.row_group(group).column(index)
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
    """Return the unpacked bytes of a column chunk's pages. Reject a page that is too large."""
    start, size = chunk.data_page_offset, 0
    if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < start:
        start = chunk.dictionary_page_offset
    for page in page_sizes(stream, start, chunk.total_compressed_size):
        if page > most:
            what = f"column {chunk.path_in_schema} has a page of {page / 1e9:.2f} GB; probably a cell is too large"
            raise ValueError(f"{what}; the limit per page is {most / 1e9:.2f} GB. Write smaller cells or pages")
        size += page
    return size


def check_size(size: int, allowed: int) -> None:
    """Reject a file whose size in memory exceeds the limit."""
    if size > allowed:
        raise ValueError(
            f"it decodes to {size / 1e9:.1f} GB or more, and at most {allowed / 1e9:.1f} GB fit in the free memory"
        )


def _text_lengths(stream: BinaryIO, group: int, path: str) -> Iterator[int]:
    """Yield the bytes of a column's texts batch by batch, read as dictionary and indices."""
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
def write_parquet(frame: pl.DataFrame, path: Place) -> None:
    """Write the frame as parquet, atomically, with equal bytes for equal content."""
    file = Path(path)
    try:
        with atomic_path(file) as temporary:
            with temporary.open("wb") as stream:
                schema = _arrow(frame.clear()).schema
                with pq.ParquetWriter(
                    stream, schema, compression="zstd", compression_level=3, write_page_checksum=True
                ) as writer:
                    for part in frame.iter_slices(_ROW_GROUP) if frame.height else [frame]:
                        writer.write_table(_arrow(part))
            sync(temporary)
        sync(file)
    except (OSError, pa.ArrowException, pl.exceptions.PolarsError) as error:
        raise TableError(
            what=f"the table cannot be written ({error})",
            where=str(file),
            fix="Free some disk space or fix the folder's permissions",
        ) from error


def _arrow(frame: pl.DataFrame) -> pa.Table:
    table = frame.rechunk().to_arrow(compat_level=pl.CompatLevel.oldest())
    return table.replace_schema_metadata({FORMAT: str(TABLES)})


def _decode_names(field: pa.Field) -> None:
    """Raise for a name that is not UTF-8, because polars would panic. (Such metadata is left out above.)"""
    _ = field.name
    for index in range(field.type.num_fields):
        _decode_names(field.type.field(index))
