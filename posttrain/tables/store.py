"""Reads and writes checked tables: atomic, byte-stable, and with the rejected rows in a file beside the target."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import polars as pl

from posttrain.errors import VERIFY, TableError
from posttrain.formats import TABLES, UPGRADE, check_format
from posttrain.measure.phases import phase
from posttrain.tables.columns import Kind
from posttrain.tables.failures import Failure, rejected_rows, row_failures, sentences, structure_failures
from posttrain.tables.parquet import DECODE_ERRORS, Place, decode, table_format, write_parquet

_MAGIC: Final = b"PAR1"
_SMALLEST: Final = 12
"""The magic at both ends and the length of the footer."""


@phase("load")
def read_table(path: Place, kind: Kind) -> pl.DataFrame:
    """The checked table at `path`."""
    file = Path(path)
    _check_container(file)
    try:
        written, frame = table_format(file), decode(file)
    except DECODE_ERRORS as error:
        reason = " ".join(str(error).split())[:200]
        raise _damaged(file, f"parquet cannot be decoded ({reason})") from error
    check_format(written, TABLES, str(file), TableError)
    if written < TABLES and structure_failures(frame, kind):
        what = f"an earlier version of posttrain made it (table format {written}), with other columns"
        raise TableError(what=what, where=str(file), fix=f"{UPGRADE}, or make it again: `dvc repro`")
    return check_table(frame, kind, file)


@phase("write")
def write_table(frame: pl.DataFrame, path: Place, kind: Kind) -> None:
    """Checks the table and puts it at `path`, whole or not at all."""
    write_parquet(check_table(frame, kind, path), path)


@phase("write")
def write_tables(tables: Mapping[Kind, pl.DataFrame], folder: Path) -> None:
    """Put checked tables at folder/KIND.parquet; the folder appears whole or not at all."""
    fresh = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        for kind, frame in tables.items():
            write_parquet(frame, fresh / f"{kind}.parquet")
        shutil.rmtree(folder, ignore_errors=True)
        fresh.replace(folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def check_table(frame: pl.DataFrame, kind: Kind, path: Place) -> pl.DataFrame:
    """The frame, if it keeps every rule of its kind; the rejected rows go to a file beside `path` otherwise."""
    file = Path(path)
    structure = structure_failures(frame, kind)
    if structure:
        told = "\n  ".join(structure)
        fix = f"Give the table exactly the columns of a '{kind}' table, in their order"
        raise TableError(what=f"the columns are not those of a '{kind}' table:\n  {told}", where=str(file), fix=fix)
    if frame.is_empty():
        raise TableError(what=f"the '{kind}' table has no rows", where=str(file), fix="Give it at least one row")
    failures = row_failures(frame, kind)
    if failures:
        raise _rejection(frame, kind, file, failures)
    rejected_path(file).unlink(missing_ok=True)
    return frame


def check_disjoint(frames: Mapping[str, pl.DataFrame]) -> None:
    """No problem and no id may be in two splits, in all tables together."""
    for column in ("problem", "id"):
        parts = [
            frame.select(pl.col(column).alias("key"), "split", table=pl.lit(name))
            for name, frame in frames.items()
            if {column, "split"} <= set(frame.columns)
        ]
        if not parts:
            continue
        rows, split = pl.concat(parts), pl.col("split")
        torn = rows.filter(split.min().over("key") != split.max().over("key")).unique(maintain_order=True)
        if torn.height:
            places = (split + " (" + pl.col("table") + ")").str.join(", ")
            keys = torn.group_by("key", maintain_order=True).agg(places).rows()
            some = "\n  ".join(f"{column} '{key[:60]}' is in {where}" for key, where in keys[:10])
            raise TableError(
                what=f"{len(keys):,} of the {column}s are in more than one split:\n  {some}",
                where=", ".join(frames),
                fix="Give each table a `split` column, or none: rename: {split: other} drops it",
            )


def rejected_path(path: Place) -> Path:
    """Where the rejected rows of the table at `path` are put."""
    return Path(path).with_suffix(".rejected.parquet")


def _check_container(file: Path) -> None:
    if not file.is_file():
        what = "this is a folder, not a table" if file.is_dir() else "there is no such table"
        raise TableError(what=what, where=str(file), fix="Run the stage that makes it: dvc repro")
    try:
        with file.open("rb") as stream:
            head = stream.read(len(_MAGIC))
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, size - len(_MAGIC)))
            tail = stream.read()
    except OSError as error:
        raise TableError(what=f"cannot be read ({error})", where=str(file), fix="Fix the file's rights") from error
    if head != _MAGIC:
        raise _damaged(file, f"this is no parquet file (it begins with {head!r}, not with {_MAGIC!r})")
    if size < _SMALLEST or tail != _MAGIC:
        raise _damaged(file, f"the file is cut off (it ends with {tail!r}, not with {_MAGIC!r})")


def _damaged(file: Path, what: str) -> TableError:
    return TableError(what=what, where=str(file), fix=VERIFY)


def _rejection(frame: pl.DataFrame, kind: Kind, file: Path, failures: list[Failure]) -> TableError:
    rejected, place = rejected_rows(frame, failures), rejected_path(file)
    total, lines = sum(len(one.rows) for one in failures), sentences(frame, failures)
    more = [f"and {total - len(lines):,} more"] if total > len(lines) else []
    count = f"{total:,} failure{'s' * (total > 1)} in {rejected.height:,} of {frame.height:,} rows"
    try:
        write_parquet(rejected, place)
        fix = f"Fix or drop these rows; they lie with their reasons in {place}"
    except TableError as error:
        fix = f"Fix or drop these rows; they could not be put beside the table ({error.what})"
    told = "\n  ".join([*lines, *more])
    return TableError(what=f"{count} break the rules of a '{kind}' table:\n  {told}", where=str(file), fix=fix)
