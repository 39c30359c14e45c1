"""Parquet in and out: writing is atomic and byte-stable, reading a damaged file raises and never panics."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from posttrain.errors import TableError
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

_ROW_GROUP: Final = 65_536


def decode(file: Path) -> pl.DataFrame:
    """The file's table, its pages verified where they have checksums; damage raises one of `DECODE_ERRORS`."""
    # pyarrow, because polars prints a panic of its own on some damaged files and does not verify checksums
    with pq.ParquetFile(file, memory_map=False, page_checksum_verification=True) as parquet:
        arrow = parquet.read().replace_schema_metadata(None)
    arrow.validate(full=True)
    for field in arrow.schema:
        _decode_names(field)
    return pl.DataFrame(pl.from_arrow(arrow))


@phase("write")
def write_parquet(frame: pl.DataFrame, path: Place) -> None:
    """The frame as parquet, atomically and with the same bytes for the same content."""
    file = Path(path)
    # one fixed name, so that what a killed process left is overwritten and does not pile up
    partial = file.with_name(f".{file.name}.partial")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as stream:
            pq.write_table(
                frame.rechunk().to_arrow(compat_level=pl.CompatLevel.oldest()),
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
            mend="Free the disk or mend the folder's rights",
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
