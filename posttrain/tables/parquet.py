"""Parquet in and out: writing is atomic and byte-stable, reading a damaged file raises and never panics."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import BinaryIO, Final

import polars as pl
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from posttrain.errors import TableError
from posttrain.formats import TABLES
from posttrain.measure.phases import phase

Place = str | os.PathLike[str]

DECODE_ERRORS: Final = (
    pa.ArrowException,
    pl.exceptions.PolarsError,
    pl.exceptions.PanicException,
    OSError,
    ValueError,
    MemoryError,
)
"""Everything that a damaged file makes `decode` raise."""

FORMAT: Final = b"posttrain.format"
"""The key of the format version in a table's metadata."""
_ROW_GROUP: Final = 65_536
_BATCH: Final = 4096
_WIDTH: Final = 8
"""Bytes that every value takes once it is decoded, whatever its type, not counting a text's own."""
_SHARED: Final = {"PLAIN_DICTIONARY", "RLE_DICTIONARY", "DELTA_BYTE_ARRAY"}
"""Encodings that store a text once and use it for many rows."""


def decode(file: Path) -> pl.DataFrame:
    """The file's table, its pages verified where they have checksums; damage raises one of `DECODE_ERRORS`."""
    # pyarrow, because polars prints a panic of its own on some damaged files and does not verify checksums
    with pq.ParquetFile(file, memory_map=False, page_checksum_verification=True) as parquet:
        arrow = parquet.read().replace_schema_metadata(None)
    arrow.validate(full=True)
    for field in arrow.schema:
        _decode_names(field)
    return pl.DataFrame(pl.from_arrow(arrow))


def table_format(file: Path) -> int:
    """The format version that a table says it has; 1 where it says none. Damage raises one of `DECODE_ERRORS`."""
    return int((pq.read_schema(file, memory_map=False).metadata or {}).get(FORMAT, b"1"))


def check_decoded_size(stream: BinaryIO, columns: Collection[str], limit: int | None = None) -> None:
    """Refuses a file whose columns would decode to more than `limit` bytes, a third of the free memory.

    A few megabytes can stand for many gigabytes: a text that is stored once and used by every row. The footer gives
    an exact size for all but such texts; where they may be too large they are measured, without being repeated.
    """
    allowed = psutil.virtual_memory().available // 3 if limit is None else limit
    size, unsure = 0, []
    with pq.ParquetFile(stream) as parquet:
        footer = parquet.metadata
        for group in range(footer.num_row_groups):
            for nth in range(footer.num_columns):
                chunk = footer.row_group(group).column(nth)
                if chunk.path_in_schema.split(".")[0] in columns:
                    size += max(chunk.total_uncompressed_size, chunk.num_values * _WIDTH)
                    most = chunk.num_values * chunk.total_uncompressed_size
                    if _SHARED & set(chunk.encodings) and most > allowed // footer.num_row_groups // footer.num_columns:
                        unsure.append((group, chunk.path_in_schema, chunk.total_uncompressed_size))
    _check_size(size, allowed)
    for group, path, stored in unsure:
        texts = 0
        for length in _text_lengths(stream, group, path):
            texts += length
            _check_size(size + texts - stored, allowed)
        size += max(0, texts - stored)


def _check_size(size: int, allowed: int) -> None:
    if size > allowed:
        raise ValueError(
            f"it decodes to {size / 1e9:.1f} GB or more, and at most {allowed / 1e9:.1f} GB fit the memory"
        )


def _text_lengths(stream: BinaryIO, group: int, path: str) -> Iterator[int]:
    """The bytes of a column's texts, batch by batch, read as a dictionary and the places in it."""
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
    """The frame as parquet, atomically and with the same bytes for the same content."""
    file = Path(path)
    # one fixed name, so that what a killed process left is overwritten and does not pile up
    partial = file.with_name(f".{file.name}.partial")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as stream:
            table = frame.rechunk().to_arrow(compat_level=pl.CompatLevel.oldest())
            pq.write_table(
                table.replace_schema_metadata({FORMAT: str(TABLES)}),
                stream,
                row_group_size=_ROW_GROUP,
                compression="zstd",
                compression_level=3,
                write_page_checksum=True,
            )
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(file)
        _sync_folder(file.parent)
    except (OSError, pa.ArrowException, pl.exceptions.PolarsError) as error:
        raise TableError(
            what=f"the table cannot be written ({error})",
            where=str(file),
            fix="Free the disk or fix the folder's rights",
        ) from error
    finally:
        partial.unlink(missing_ok=True)


def _decode_names(field: pa.Field) -> None:
    """Raises on a name that is no UTF-8, where polars would panic (as it would on such metadata, left out above)."""
    _ = field.name
    for nth in range(field.type.num_fields):
        _decode_names(field.type.field(nth))


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
