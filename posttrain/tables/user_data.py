"""The user's own data, files of the workspace or a Hub data set, as one of our tables.

Every row is converted by itself, so that an odd one changes no other, and keeps the file and line that it came from.
No row disappears without a line on stderr.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import polars as pl
from pydantic import Field, field_validator

from posttrain.errors import DataError, TableError
from posttrain.measure.phases import phase
from posttrain.params import Params
from posttrain.tables.columns import COLUMNS, SPLITS, Kind, Split
from posttrain.tables.conversion import ORIGIN, Converted, Refused, read_parts
from posttrain.tables.failures import (
    LISTED,
    Failure,
    first_line,
    printable,
    rejected_rows,
    row_failures,
    sentences,
    shown,
)
from posttrain.tables.identity import with_ids
from posttrain.tables.parquet import write_parquet
from posttrain.tables.places import Finder, Parts
from posttrain.tables.readers import Columns, Numbered, Part, arrow_rows
from posttrain.tables.splits import divided, meaning
from posttrain.tables.store import rejected_path

Say = Callable[[str], None]
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_HELD_OUT: Final[dict[Split, str]] = {"train": "train", "heldout": "held out", "test": "test"}


class ReadOptions(Params):
    """How a table of the user's becomes ours."""

    splits: dict[Split, str] = Field(
        default={}, description="Our split: the source's name of it; by default names like validation"
    )
    rename: dict[str, str] = Field(default={}, description="Columns to rename, the source's name: the layout's name")
    limit: int | None = Field(default=None, ge=1, description="Read only so many rows of each of the source's splits")
    heldout_share: float = Field(
        default=0.05, ge=0, lt=0.5, description="Taken from train by hash if the source has no heldout"
    )
    test_share: float = Field(
        default=0.05,
        ge=0,
        lt=0.5,
        description="Taken from train by hash if the source has no test; only prompts keep these rows",
    )
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

    A file's path is relative to `root`. Rejected rows are put beside `table`, the file that the table is meant for.
    """

    def say(line: str) -> None:
        print(f"{where}: {line}", file=sys.stderr)

    if isinstance(source, HubTable):
        found = _hub_parts(source, where)
    else:
        finder = Finder(where, outside_workspace)
        found = finder.find(source.path, root, source.splits.values())
        if finder.ignored:
            say(f"not read: {', '.join(finder.ignored)}")
    parts = _selected(found, source, where, say)
    read = read_parts(parts, kind, source.rename, source.limit, where)
    if read.limited:
        say(f"read only the first {source.limit:,} rows of each split (limit)")
    own = _own_splits(read, list(parts), source, where)
    count = own.height + len(read.refused)
    checked = _checked(_divided(own, source, kind, say), read.refused, source, kind, where, say, table)
    _check_splits(checked, source, kind, where)
    _tell(checked, own, source, kind, count, say)
    return checked


def _hub_parts(source: HubTable, where: str) -> Parts:
    if Path(source.name).exists():
        mend = "Name local data under data.files"
        raise DataError(
            what=f"'{source.name}' is a local file or folder, not a data set of the Hub", where=where, mend=mend
        )
    # imported here because only data of the Hub needs it and it takes most of a second
    import datasets

    try:
        loaded = datasets.load_dataset(source.name, source.config, revision=source.revision)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        what = f"the data set cannot be loaded ({first_line(error)})"
        raise DataError(what=what, where=where, mend="Check its name and the network, or name files") from error
    return dataset_parts(loaded, source.name)


def dataset_parts(loaded: Any, name: str) -> Parts:
    """The splits of a `DatasetDict`."""

    def rows(split: Any, columns: Columns) -> Iterator[Numbered]:
        batches = (batch for some in split.with_format("arrow").iter(1000) for batch in some.to_batches())
        return arrow_rows(batches, columns, split.column_names)

    return {str(split): [Part(printable(f"{name} {split}"), partial(rows, part))] for split, part in loaded.items()}


def _selected(parts: Parts, source: ReadOptions, where: str, say: Say) -> Parts:
    """The parts of the splits that are used; rows of a single part may still name their own."""
    if len(parts) == 1:
        return parts
    named = _named(list(parts), source, where)
    unread = [name for name in parts if name not in named]
    if unread:
        say(f"not read: {', '.join(map(printable, unread))}; name them under 'splits' if they are splits")
    return {name: parts[name] for name in named}


def _named(names: list[str], source: ReadOptions, where: str) -> dict[str, Split]:
    """Our split of each of the source's, all wanted ones and train among them."""
    named = meaning(source.splits, names)
    missing = next((name for name in source.splits.values() if name not in names), None)
    if missing is not None or "train" not in named.values():
        what = f"split '{missing}' is not found" if missing is not None else "no split is named train"
        known = printable(", ".join(names))
        mend = f"The source has {known}. Name them, e.g. splits: {{train: {printable(names[0])}}}"
        raise DataError(what=what, where=where, mend=mend)
    return named


def _own_splits(read: Converted, names: list[str], source: ReadOptions, where: str) -> pl.DataFrame:
    """The converted rows with the split that their source or their own column `split` names."""
    frame, given = read.frame, pl.col("given")
    values = frame["given"].drop_nulls().unique(maintain_order=True).to_list()
    if not values:
        return frame.with_columns(split=pl.col("source").replace_strict(_named(names, source, where)))
    if len(names) > 1:
        what = (
            f"the rows have a column 'split', and the source itself has the splits {', '.join(map(printable, names))}"
        )
        raise DataError(what=what, where=where, mend="Give one file, or rename the column, e.g. rename: {split: part}")
    named = _named(values, source, where)
    for file, line, value in (
        frame.filter(~given.is_in(list(named)).fill_null(value=False)).select(*ORIGIN, "given").rows()
    ):
        known = printable(", ".join(named))
        mend = "name it under 'splits', or rename the column if it is not a split"
        read.refused.append(Refused(file, line, f"split = {shown(value)} is not one of {known}; {mend}"))
    split = given.replace_strict(named, default=None, return_dtype=pl.String())
    return frame.with_columns(split=split).drop_nulls("split")


def _divided(frame: pl.DataFrame, source: ReadOptions, kind: Kind, say: Say) -> pl.DataFrame:
    """The rows with the splits of this kind of table: the source's own, and those that it lacks by hash from train."""
    own = set(frame["split"])
    if "test" in own and "test" not in SPLITS[kind]:
        tests = frame.filter(split="test").height
        if "heldout" in own:
            frame = frame.filter(pl.col("split") != "test")
            say(f"{_rows(tests)} of the test split left out: a {kind} table has none")
        else:
            frame = frame.with_columns(pl.col("split").replace("test", "heldout"))
            say(f"the {_rows(tests)} of the test split are held out: a {kind} table has no test split")
    train = frame.filter(split="train")
    shares = _shares(own, source, kind)
    split = divided(train, kind, heldout_share=shares["heldout"], test_share=shares["test"])
    rest = [frame.filter(split=name) for name in ("heldout", "test")]
    whole = pl.concat([train.with_columns(split), *rest])
    kept = whole.filter(pl.col("split").is_in(SPLITS[kind]))
    if kept.height < whole.height:
        left = _rows(whole.height - kept.height)
        say(f"{left} left out: their problem is in the test split of prompts (test_share {source.test_share:g})")
    return kept


def _shares(own: set[str], source: ReadOptions, kind: Kind) -> dict[Split, float]:
    """What is taken from train by hash for each split."""
    held_out = "heldout" in own or ("test" in own and "test" not in SPLITS[kind])
    return {
        "heldout": 0.0 if held_out else source.heldout_share,
        "test": 0.0 if "test" in own or kind == "corpus" else source.test_share,
    }


def _checked(
    frame: pl.DataFrame,
    refused: list[Refused],
    source: ReadOptions,
    kind: Kind,
    where: str,
    say: Say,
    table: Path | None,
) -> pl.DataFrame:
    """The table, every row of which keeps the rules, or an error that names the rows that do not."""
    rows = with_ids(frame, kind).hstack(frame.select(ORIGIN))
    if source.bad_rows == "drop":
        unique = rows.unique("id", keep="first", maintain_order=True)
        if unique.height < rows.height:
            say(f"{_rows(rows.height - unique.height)} left out: duplicates of earlier rows (bad_rows: drop)")
        rows = unique
    failures = row_failures(rows.select(COLUMNS[kind].keys()), kind) if rows.height else []
    if not failures and not refused:
        return rows.select(COLUMNS[kind].keys())
    rejected = _rejected(rows, refused, failures)
    told = [f"{_place(one.file, one.line)}: {one.reason}" for one in refused[:LISTED]]
    told += sentences(rows, failures, lambda row: _place(rows["file"][row], rows["line"][row]))
    if source.bad_rows == "stop":
        raise _rejection(rejected, told, rows.height + len(refused), kind, where, table)
    say(f"{_rows(rejected.height)} left out as bad (bad_rows: drop), e.g. {told[0]}")
    return rows.join(rejected, on=ORIGIN, how="anti", maintain_order="left").select(COLUMNS[kind].keys())


def _rejected(rows: pl.DataFrame, refused: list[Refused], failures: list[Failure]) -> pl.DataFrame:
    """Every rejected row with its file, its line and the reason; unconverted ones without our columns."""
    schema = {"file": pl.String(), "line": pl.UInt32(), "reason": pl.String()}
    parts = [pl.DataFrame([(one.file, one.line, one.reason) for one in refused], schema=schema, orient="row")]
    if failures:
        parts.append(rejected_rows(rows, failures).drop("row").select(*ORIGIN, "reason", *rows.drop(ORIGIN).columns))
    return pl.concat(parts, how="diagonal")


def _rejection(
    rejected: pl.DataFrame, told: list[str], count: int, kind: Kind, where: str, table: Path | None
) -> TableError:
    more = [f"and {rejected.height - len(told):,} more"] if rejected.height > len(told) else []
    what = f"{rejected.height:,} of {count:,} rows break the rules of a '{kind}' table:"
    mend = "Fix or remove these rows, or set bad_rows: drop"
    if table is not None:
        write_parquet(rejected, rejected_path(table))
        mend = f"{mend}; {rejected_path(table)} lists them all"
    return TableError(what="\n  ".join([what, *told, *more]), where=where, mend=mend)


def _check_splits(table: pl.DataFrame, source: ReadOptions, kind: Kind, where: str) -> None:
    shares = {"train": 1.0, "heldout": source.heldout_share, "test": source.test_share}
    for split in SPLITS[kind]:
        if shares[split] and table.filter(split=split).is_empty():
            mend = f"Give more rows, name a split of the source, or raise {split}_share; 0 means that none is needed"
            mend = "Lower heldout_share and test_share, or give more rows" if split == "train" else mend
            raise DataError(what=f"none of {_rows(table.height)} is in the split '{split}'", where=where, mend=mend)


def _tell(table: pl.DataFrame, own: pl.DataFrame, source: ReadOptions, kind: Kind, count: int, say: Say) -> None:
    """How many rows were read, and where they are now."""
    shares = _shares(set(own["split"]), source, kind)
    told = []
    for split in SPLITS[kind]:
        share = f" ({split}_share {shares[split]:g})" if shares.get(split) else ""
        told.append(f"{table.filter(split=split).height:,} {_HELD_OUT[split]}{share}")
    say(f"{_rows(count)}: {', '.join(told)}")
    if kind == "chat":
        roles = pl.col("messages").list.eval(pl.element().struct.field("role") == "assistant")
        several = table.filter(roles.list.sum() > 1).height
        if several:
            say(f"{_rows(several)} with several assistant turns: only the last of each is trained")
    if kind == "prompts" and 0 < (lacking := table.filter(answer="").height) < table.height:
        say(f"{_rows(lacking)} without an answer: no rule can check them")


def _place(file: str, line: int) -> str:
    return f"{file} {'line' if file.lower().endswith(('.jsonl', '.csv')) else 'row'} {line}"


def _rows(count: int) -> str:
    return f"{count:,} row{'s' * (count != 1)}"
