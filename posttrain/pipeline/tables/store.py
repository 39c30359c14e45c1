"""Read and write checked tables: writes are atomic, equal rows give equal bytes, rejected rows go to another file.

A damaged file raises an error; it never makes polars panic.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import polars as pl

from posttrain.data.columns import COLUMNS, Kind
from posttrain.data.parquet import DECODE_ERRORS, Place, decode, ran_out_of_memory, table_format, write_parquet
from posttrain.errors import FREE_MEMORY, DataError, TableError, shortened
from posttrain.files import atomic_path
from posttrain.measure.phases import phase
from posttrain.pipeline.tables.failures import Failure, failure_lines, rejected_rows, row_failures, structure_failures
from posttrain.pipeline.workspace import VERIFY
from posttrain.settings.plain import TABLES, UPGRADE, check_format

_MAGIC: Final = b"PAR1"
_OUTPUTS: Final = ("completions", "data", "metrics", "results", "rollouts")
_SMALLEST: Final = 12
"""The size of the magic at both ends and the footer's length."""


def read_results(file: Path, label: str) -> pl.DataFrame:
    """Return the rollouts of an evaluated policy. Raise if the file contains another policy's."""
    rows = read_table(file, "rollouts")
    if others := sorted(set(rows["policy"]) - {label}):
        raise DataError(what=f"its rows belong to the policy {others[0]}, not to {label}", where=str(file), fix=VERIFY)
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
            what = f"memory ran out while reading it ({reason})"
            raise TableError(what=what, where=str(file), fix=FREE_MEMORY) from error
        raise _damaged(file, f"parquet cannot be decoded ({reason})") from error
    check_format(written, TABLES, str(file), TableError)
    if written < TABLES and structure_failures(frame, kind):
        what = f"an earlier version of posttrain wrote it (table format {written}), with other columns"
        raise TableError(what=what, where=str(file), fix=f"{UPGRADE}, or make it again: `dvc repro`")
    return check_table(frame, kind, file)


@phase("write")
def write_table(frame: pl.DataFrame, path: Place, kind: Kind) -> None:
    """Check the table and write it to `path`, completely or not at all."""
    write_parquet(check_table(frame, kind, path), path)


@phase("write")
def write_tables(tables: Mapping[Kind, pl.DataFrame], folder: Path) -> None:
    """Write checked tables to folder/KIND.parquet. The folder appears completely or not at all."""
    with atomic_path(folder) as temporary:
        for kind, frame in tables.items():
            write_parquet(frame, temporary / f"{kind}.parquet")


def check_table(frame: pl.DataFrame, kind: Kind, path: Place) -> pl.DataFrame:
    """Return the frame if it satisfies all rules; else raise and write the rejected rows to a file next to `path`."""
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
    """Reject tables that together have a problem or an id in two splits."""
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
    """Return the file for a table's rejected rows. It is outside the output folders, which DVC tracks."""
    file = Path(path)
    folder = Path("rejected" if not file.is_absolute() and file.parts[0] in _OUTPUTS else "")
    return (folder / file).with_suffix(".rejected.parquet")


def _check_container(file: Path) -> None:
    if not file.is_file():
        what = "it is a folder, not a table" if file.is_dir() else "table not found"
        fix = "Run the stage that makes it (dvc repro), or get it with `dvc pull`"
        raise TableError(what=what, where=str(file), fix=fix)
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
    named = {"reason": "own_reason"} if "reason" in COLUMNS[kind] else {}  # the file adds a column `reason`
    rejected, place = rejected_rows(frame.rename(named), failures), rejected_path(file)
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
