"""The user's own data, files of the workspace or a Hub data set, as one of our tables.

Each row is converted by itself and keeps its file and line. No row is left out without a line on stderr.
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
from posttrain.tables.conversion import ORIGIN, RefusedRow, read_parts
from posttrain.tables.failures import LISTED, Failure, failure_lines, rejected_rows, row_failures
from posttrain.tables.find_files import FileFinder, Parts
from posttrain.tables.hub_data import hub_parts
from posttrain.tables.mixing import mix_by_weight
from posttrain.tables.options import FileTable, HubTable, Source, numbered_sources
from posttrain.tables.store import rejected_path, write_parquet
from posttrain.tables.user_splits import (
    Log,
    assign_source_splits,
    assign_splits,
    check_splits,
    rows_text,
    select_parts,
    split_shares,
)

_SPLIT_TITLES: Final[dict[Split, str]] = {"train": "train", "heldout": "held out", "test": "test"}
_FROM: Final = ("source", *ORIGIN)
"""Which source of the list a row is from, its file and its line."""


@dataclass
class _Read:
    """One source's converted rows with their ids, splits and origins; `count` includes the refused rows."""

    rows: pl.DataFrame
    refused: list[RefusedRow]
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
    log = partial(_log, where)
    sources = numbered_sources(where, source)
    reads = [
        _read(nth, one, kind, key, root, outside_workspace=outside_workspace)
        for nth, (key, one) in enumerate(sources.items())
    ]
    count = sum(one.count for one in reads)
    rows = pl.concat([one.rows for one in reads], how="diagonal")
    refused = [(nth, one) for nth, read in enumerate(reads) for one in read.refused]
    shares = {split: max(one.shares[split] for one in reads) for split in reads[0].shares}
    del reads
    rows = _without_duplicates(_ordered(rows, kind), log)
    failures = row_failures(rows.drop(_FROM), kind) if rows.height else []
    source_list = list(sources.values())
    for policy in ("stop", "drop"):
        chosen = [nth for nth, one in enumerate(source_list) if one.bad_rows == policy]
        if not chosen:
            continue
        rejected, lines = _rejected_rows(rows, failures, refused, kind, chosen)
        if lines and policy == "stop":
            what = f"of {rows_text(count)} break the rules of a '{kind}' table:"
            raise _rejection(rejected, lines, what, where, table)
        if lines:
            log(f"{rows_text(rejected.height)} left out (bad_rows: drop), e.g. {lines[0]}")
        if rejected.height:
            rows = rows.join(rejected, on=_FROM, how="anti", maintain_order="left")
    good = mix_by_weight(rows, source_list, where, log).drop(_FROM)
    check_splits(good, source_list[0], kind, where)
    _print_summary(good, shares, kind, count, log)
    return good


def _log(where: str, line: str) -> None:
    print(f"{where}: {line}", file=sys.stderr)


def _read(nth: int, source: Source, kind: Kind, where: str, root: Path, *, outside_workspace: bool) -> _Read:
    """The rows of one source, with splits; the rules of the table are checked later."""
    log = partial(_log, where)
    if isinstance(source, HubTable):
        parts = hub_parts(source, where, log)
    else:
        parts = _file_parts(source, FileFinder(where, outside_workspace), root, log)
    parts = select_parts(parts, source, where, log)
    read = read_parts(parts, kind, source, source.limit, where)
    if read.limited:
        log(f"read only the first {source.limit:,} rows of each split (limit)")
    refused, own = read.refused, assign_source_splits(read, list(parts), source, where)
    count, shares = own.height + len(refused), split_shares(set(own["split"]), source, kind)
    split = assign_splits(own, source, kind, log)
    del read, own  # a large table fits the memory two or three times, not five times
    origin = split.select(pl.lit(nth, pl.UInt32()).alias("source"), *ORIGIN)
    return _Read(with_ids(split, kind).hstack(origin), refused, count, shares)


def _ordered(rows: pl.DataFrame, kind: Kind) -> pl.DataFrame:
    """The rows with the table's columns in their order, where only some sources have the optional ones."""
    optional = [name for name in OPTIONAL.get(kind, {}) if name in rows.columns]
    return rows.select(*COLUMNS[kind], *optional, *_FROM)


def _file_parts(source: FileTable, finder: FileFinder, root: Path, log: Log) -> Parts:
    parts = finder.find(source.path, root, source.splits.values())
    if finder.ignored:
        log(f"not read: {', '.join(finder.ignored)}")
    return parts


def _without_duplicates(rows: pl.DataFrame, log: Log) -> pl.DataFrame:
    first = rows.select(pl.struct("id", "split").is_first_distinct()).to_series()
    if first.all():
        return rows
    log(f"{rows_text(rows.height - int(first.sum()))} left out: duplicates of an earlier row of the same split")
    return rows.filter(first)


def _rejected_rows(
    rows: pl.DataFrame,
    failures: Sequence[Failure],
    refused: Sequence[tuple[int, RefusedRow]],
    kind: Kind,
    sources: list[int],
) -> tuple[pl.DataFrame, list[str]]:
    """The rejected rows of some of the sources with origin and reason, and the lines of an error about the first."""
    unreadable = [(nth, one) for nth, one in refused if nth in sources]
    broken = [replace(one, rows=one.rows.filter(rows["source"].gather(one.rows).is_in(sources))) for one in failures]
    broken = [one for one in broken if len(one.rows)]
    lines = [f"{_place(one.file, one.line)}: {one.reason}" for _, one in unreadable[:LISTED]]
    lines += failure_lines(rows, broken, lambda row: _place(rows["file"][row], rows["line"][row]))
    schema = {"source": pl.UInt32(), "file": pl.String(), "line": pl.UInt32(), "reason": pl.String()}
    values = [(nth, one.file, one.line, one.reason) for nth, one in unreadable]
    parts = [pl.DataFrame(values, schema=schema, orient="row")]
    if broken:
        parts.append(rejected_rows(rows, broken).drop("row").select(*_FROM, "reason", *COLUMNS[kind].keys()))
    return pl.concat(parts, how="diagonal"), lines


def _rejection(rejected: pl.DataFrame, lines: list[str], what: str, where: str, table: Path | None) -> TableError:
    more = [f"and {rejected.height - len(lines):,} more"] if rejected.height > len(lines) else []
    fix = "Fix or remove these rows, or set bad_rows: drop"
    if table is not None:
        write_parquet(rejected.drop("source"), rejected_path(table))
        fix = f"{fix}; {rejected_path(table)} lists them all"
    return TableError(what="\n  ".join([f"{rejected.height:,} {what}", *lines, *more]), where=where, fix=fix)


def _print_summary(table: pl.DataFrame, shares: Mapping[Split, float], kind: Kind, count: int, log: Log) -> None:
    """Print how many rows were read, and how many are in each split."""
    parts = []
    for split in SPLITS[kind]:
        share = f" ({split}_share {shares[split]:g})" if shares.get(split) else ""
        parts.append(f"{table.filter(split=split).height:,} {_SPLIT_TITLES[split]}{share}")
    log(f"{rows_text(count)}: {', '.join(parts)}")
    if kind == "chat":
        roles = pl.col("messages").list.eval(pl.element().struct.field("role") == "assistant")
        if several := table.filter(roles.list.sum() > 1).height:
            log(f"{rows_text(several)} with several assistant turns: sft trains on all of them (turns: last, the last)")
    if kind == "prompts" and 0 < (unanswered := table.filter(answer="").height) < table.height:
        log(f"{rows_text(unanswered)} without an answer: rewards that compare with the answer skip them")


def _place(file: str, line: int) -> str:
    return f"{file} {'line' if file.lower().endswith(('.jsonl', '.csv')) else 'row'} {line}"
