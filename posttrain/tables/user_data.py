"""The user's own data, files of the workspace or a Hub data set, as one of our tables.

Every row is converted by itself, so that an odd one changes no other, and keeps the file and line that it came from.
No row disappears without a line on stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import polars as pl

from posttrain.errors import TableError
from posttrain.measure.phases import phase
from posttrain.tables.columns import COLUMNS, OPTIONAL, SPLITS, Kind, Split, with_ids
from posttrain.tables.conversion import ORIGIN, Refused, read_parts
from posttrain.tables.failures import LISTED, Failure, rejected_rows, row_failures, sentences
from posttrain.tables.find_files import Finder, Parts
from posttrain.tables.hub_data import hub_parts
from posttrain.tables.mixing import mixed
from posttrain.tables.options import FileTable, HubTable, Source, numbered
from posttrain.tables.store import rejected_path, write_parquet
from posttrain.tables.user_splits import Say, check_splits, counted, divide, own_splits, selected, split_shares

_HELD_OUT: Final[dict[Split, str]] = {"train": "train", "heldout": "held out", "test": "test"}
_FROM: Final = ("source", *ORIGIN)
"""Which source of the list a row is from, its file and its line."""


@dataclass
class _Read:
    """One source's converted rows with their ids, splits and origins, and what is known about them."""

    rows: pl.DataFrame
    refused: list[Refused]
    count: int
    shares: Mapping[Split, float]


@phase("load")
def load_table(
    source: Source | Sequence[Source],
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
    say = partial(_say, where)
    sources = numbered(where, source)
    reads = [
        _read(nth, one, kind, key, root, outside_workspace=outside_workspace)
        for nth, (key, one) in enumerate(sources.items())
    ]
    count = sum(one.count for one in reads)
    rows = pl.concat([one.rows for one in reads], how="diagonal")
    refused = [(nth, one) for nth, read in enumerate(reads) for one in read.refused]
    shares = {split: max(one.shares[split] for one in reads) for split in reads[0].shares}
    del reads
    rows = _without_duplicates(_ordered(rows, kind), say)
    failures = row_failures(rows.drop(_FROM), kind) if rows.height else []
    given = list(sources.values())
    for policy in ("stop", "drop"):
        of = [nth for nth, one in enumerate(given) if one.bad_rows == policy]
        if not of:
            continue
        rejected, told = _rejected(rows, failures, refused, kind, of)
        if told and policy == "stop":
            raise _rejection(rejected, told, f"of {counted(count)} break the rules of a '{kind}' table:", where, table)
        if told:
            say(f"{counted(rejected.height)} left out as bad (bad_rows: drop), e.g. {told[0]}")
        if rejected.height:
            rows = rows.join(rejected, on=_FROM, how="anti", maintain_order="left")
    good = mixed(rows, given, where, say).drop(_FROM)
    check_splits(good, given[0], kind, where)
    _tell(good, shares, kind, count, say)
    return good


def _say(where: str, line: str) -> None:
    print(f"{where}: {line}", file=sys.stderr)


def _read(nth: int, source: Source, kind: Kind, where: str, root: Path, *, outside_workspace: bool) -> _Read:
    """The rows of one source, with splits; no row is judged by the rules of the table yet."""
    say = partial(_say, where)
    if isinstance(source, HubTable):
        found = hub_parts(source, where, say)
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
    origin = split.select(pl.lit(nth, pl.UInt32()).alias("source"), *ORIGIN)
    return _Read(with_ids(split, kind).hstack(origin), refused, count, shares)


def _ordered(rows: pl.DataFrame, kind: Kind) -> pl.DataFrame:
    """The rows with the table's columns in their order, where only some sources have the optional ones."""
    optional = [name for name in OPTIONAL.get(kind, {}) if name in rows.columns]
    return rows.select(*COLUMNS[kind], *optional, *_FROM)


def _file_parts(source: FileTable, finder: Finder, root: Path, say: Say) -> Parts:
    found = finder.find(source.path, root, source.splits.values())
    if finder.ignored:
        say(f"not read: {', '.join(finder.ignored)}")
    return found


def _without_duplicates(rows: pl.DataFrame, say: Say) -> pl.DataFrame:
    first = rows.select(pl.struct("id", "split").is_first_distinct()).to_series()
    if first.all():
        return rows
    say(f"{counted(rows.height - int(first.sum()))} left out: the same as an earlier row of their split")
    return rows.filter(first)


def _rejected(
    rows: pl.DataFrame, failures: Sequence[Failure], refused: Sequence[tuple[int, Refused]], kind: Kind, of: list[int]
) -> tuple[pl.DataFrame, list[str]]:
    """Every rejected row of some of the sources with its origin and the reason, and sentences about the first."""
    ours = [(nth, one) for nth, one in refused if nth in of]
    broken = [_among(one, rows["source"].gather(one.rows).is_in(of)) for one in failures]
    broken = [one for one in broken if len(one.rows)]
    told = [f"{_place(one.file, one.line)}: {one.reason}" for _, one in ours[:LISTED]]
    told += sentences(rows, broken, lambda row: _place(rows["file"][row], rows["line"][row]))
    schema = {"source": pl.UInt32(), "file": pl.String(), "line": pl.UInt32(), "reason": pl.String()}
    found = [(nth, one.file, one.line, one.reason) for nth, one in ours]
    parts = [pl.DataFrame(found, schema=schema, orient="row")]
    if broken:
        parts.append(rejected_rows(rows, broken).drop("row").select(*_FROM, "reason", *COLUMNS[kind].keys()))
    return pl.concat(parts, how="diagonal"), told


def _among(failure: Failure, wanted: pl.Series) -> Failure:
    return replace(failure, rows=failure.rows.filter(wanted))


def _rejection(rejected: pl.DataFrame, told: list[str], what: str, where: str, table: Path | None) -> TableError:
    more = [f"and {rejected.height - len(told):,} more"] if rejected.height > len(told) else []
    fix = "Fix or remove these rows, or set bad_rows: drop"
    if table is not None:
        write_parquet(rejected.drop("source"), rejected_path(table))
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
