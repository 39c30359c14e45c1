"""The user's own data, files of the workspace or a Hub data set, as one of our tables.

Every row is converted by itself, so that an odd one changes no other, and keeps the file and line that it came from.
No row disappears without a line on stderr.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import polars as pl
from pydantic import Field, field_validator

from posttrain.errors import DataError, TableError
from posttrain.measure.phases import phase
from posttrain.tables.columns import COLUMNS, SPLITS, Kind, Split, with_ids
from posttrain.tables.conversion import ORIGIN, Refused, read_parts
from posttrain.tables.failures import (
    LISTED,
    first_line,
    printable,
    rejected_rows,
    row_failures,
    sentences,
)
from posttrain.tables.places import Finder, Parts
from posttrain.tables.readers import Columns, Numbered, Part, arrow_rows
from posttrain.tables.source_columns import ColumnOptions
from posttrain.tables.store import rejected_path, write_parquet
from posttrain.tables.user_splits import (
    Say,
    SplitOptions,
    check_splits,
    counted,
    divide,
    own_splits,
    selected,
    split_shares,
)

_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_HELD_OUT: Final[dict[Split, str]] = {"train": "train", "heldout": "held out", "test": "test"}


class ReadOptions(ColumnOptions, SplitOptions):
    """How a table of the user's becomes ours."""

    limit: int | None = Field(default=None, ge=1, description="Read only so many rows of each of the source's splits")
    bad_rows: Literal["stop", "drop"] = Field(
        default="stop", description="What to do with rows that break the table's rules"
    )


class FileTable(ReadOptions):
    """A table in files of the user's."""

    path: str = Field(min_length=1, description="A parquet, jsonl, json, csv or arrow file, or a folder of them")


class HubTable(ReadOptions):
    """A table in a data set of the Hub."""

    name: str = Field(min_length=1, description="The data set's name on the Hub, e.g. org/name")
    config: str | None = Field(default=None, min_length=1, description="The data set's configuration")
    revision: str = Field(description="The data set's commit, 40 hexadecimal digits")

    @field_validator("name")
    @classmethod
    def _on_the_hub(cls, name: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", name, re.ASCII):
            raise ValueError("not a name of the Hub such as org/name; name local data under data.files")
        return name

    @field_validator("revision")
    @classmethod
    def _pinned(cls, revision: str) -> str:
        if not _COMMIT.fullmatch(revision):
            raise ValueError("must be a commit of 40 hexadecimal digits, because a tag or branch can move")
        return revision


@phase("load")
def load_table(
    source: FileTable | HubTable,
    kind: Kind,
    where: str,
    root: Path = Path(),
    *,
    outside_workspace: bool = False,
    table: Path | None = None,
) -> pl.DataFrame:
    """The user's data as a checked table with ids and splits; `where` names its parameter in errors and printed lines.

    A file's path is relative to `root`. Rejected rows are put next to `table`, the file that the table is meant for.
    """

    def say(line: str) -> None:
        print(f"{where}: {line}", file=sys.stderr)

    if isinstance(source, HubTable):
        found = _hub_parts(source, where)
    else:
        found = _file_parts(source, Finder(where, outside_workspace), root, say)
    parts = selected(found, source, where, say)
    read = read_parts(parts, kind, source, source.limit, where)
    if read.limited:
        say(f"read only the first {source.limit:,} rows of each split (limit)")
    refused, own = read.refused, own_splits(read, list(parts), source, where)
    count, shares = own.height + len(refused), split_shares(set(own["split"]), source, kind)
    split = divide(own, source, kind, say)
    del read, own  # a large table fits the memory two or three times, not five times
    rows = _without_duplicates(with_ids(split, kind).hstack(split.select(ORIGIN)), say)
    del split
    rejected, told = _rejected(rows, refused, kind)
    if told and source.bad_rows == "stop":
        raise _rejection(rejected, told, f"of {counted(count)} break the rules of a '{kind}' table:", where, table)
    if told:
        say(f"{counted(rejected.height)} left out as bad (bad_rows: drop), e.g. {told[0]}")
    if rejected.height:
        rows = rows.join(rejected, on=ORIGIN, how="anti", maintain_order="left")
    good = rows.drop(ORIGIN)
    check_splits(good, source, kind, where)
    _tell(good, shares, kind, count, say)
    return good


def _file_parts(source: FileTable, finder: Finder, root: Path, say: Say) -> Parts:
    found = finder.find(source.path, root, source.splits.values())
    if finder.ignored:
        say(f"not read: {', '.join(finder.ignored)}")
    return found


def _hub_parts(source: HubTable, where: str) -> Parts:
    if Path(source.name).exists():
        fix = "Name local data under data.files"
        raise DataError(
            what=f"'{source.name}' is a local file or folder, not a data set of the Hub", where=where, fix=fix
        )
    # imported here because only data of the Hub needs it and it takes most of a second
    import datasets

    try:
        loaded = datasets.load_dataset(source.name, source.config, revision=source.revision)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        what = f"the data set cannot be loaded ({first_line(error)})"
        raise DataError(what=what, where=where, fix="Check its name and the network, or name files") from error
    return dataset_parts(loaded, source.name)


def dataset_parts(loaded: Any, name: str) -> Parts:
    """The splits of a `DatasetDict`."""

    def rows(split: Any, columns: Columns) -> Iterator[Numbered]:
        batches = (batch for some in split.with_format("arrow").iter(1000) for batch in some.to_batches())
        return arrow_rows(batches, columns, split.column_names)

    return {str(split): [Part(printable(f"{name} {split}"), partial(rows, part))] for split, part in loaded.items()}


def _without_duplicates(rows: pl.DataFrame, say: Say) -> pl.DataFrame:
    first = rows.select(pl.struct("id", "split").is_first_distinct()).to_series()
    if first.all():
        return rows
    say(f"{counted(rows.height - int(first.sum()))} left out: the same as an earlier row of their split")
    return rows.filter(first)


def _rejected(rows: pl.DataFrame, refused: list[Refused], kind: Kind) -> tuple[pl.DataFrame, list[str]]:
    """Every rejected row with its file, its line and the reason, and sentences about the first of them."""
    failures = row_failures(rows.drop(ORIGIN), kind) if rows.height else []
    told = [f"{_place(one.file, one.line)}: {one.reason}" for one in refused[:LISTED]]
    told += sentences(rows, failures, lambda row: _place(rows["file"][row], rows["line"][row]))
    schema = {"file": pl.String(), "line": pl.UInt32(), "reason": pl.String()}
    parts = [pl.DataFrame([(one.file, one.line, one.reason) for one in refused], schema=schema, orient="row")]
    if failures:
        parts.append(rejected_rows(rows, failures).drop("row").select(*ORIGIN, "reason", *COLUMNS[kind].keys()))
    return pl.concat(parts, how="diagonal"), told


def _rejection(rejected: pl.DataFrame, told: list[str], what: str, where: str, table: Path | None) -> TableError:
    more = [f"and {rejected.height - len(told):,} more"] if rejected.height > len(told) else []
    fix = "Fix or remove these rows, or set bad_rows: drop"
    if table is not None:
        write_parquet(rejected, rejected_path(table))
        fix = f"{fix}; {rejected_path(table)} lists them all"
    return TableError(what="\n  ".join([f"{rejected.height:,} {what}", *told, *more]), where=where, fix=fix)


def _tell(table: pl.DataFrame, shares: Mapping[Split, float], kind: Kind, count: int, say: Say) -> None:
    """How many rows were read, and where they are now."""
    told = []
    for split in SPLITS[kind]:
        share = f" ({split}_share {shares[split]:g})" if shares.get(split) else ""
        told.append(f"{table.filter(split=split).height:,} {_HELD_OUT[split]}{share}")
    say(f"{counted(count)}: {', '.join(told)}")
    if kind == "chat":
        roles = pl.col("messages").list.eval(pl.element().struct.field("role") == "assistant")
        several = table.filter(roles.list.sum() > 1).height
        if several:
            say(
                f"{counted(several)} with several assistant turns: sft trains on all of them, or the last (turns: last)"
            )
    if kind == "prompts" and 0 < (lacking := table.filter(answer="").height) < table.height:
        say(f"{counted(lacking)} without an answer: no rule can check them")


def _place(file: str, line: int) -> str:
    return f"{file} {'line' if file.lower().endswith(('.jsonl', '.csv')) else 'row'} {line}"
