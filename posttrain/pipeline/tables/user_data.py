"""Turn the user's own data, from workspace files or a Hub data set, into one of posttrain's tables.

Each row is converted separately and keeps its file and line. Every row that is left out is reported on stderr.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import polars as pl

from posttrain.data.columns import COLUMNS, OPTIONAL, SPLITS, Kind, Split, with_ids
from posttrain.data.parquet import write_parquet
from posttrain.errors import DataError, TableError
from posttrain.pipeline.tables.conversion import ORIGIN, ConvertedRows, RefusedRow, read_parts
from posttrain.pipeline.tables.failures import LISTED, Failure, failure_lines, rejected_rows, row_failures
from posttrain.pipeline.tables.find_files import FileFinder, Parts
from posttrain.pipeline.tables.hub_data import hub_parts
from posttrain.pipeline.tables.mixing import mix_by_weight
from posttrain.pipeline.tables.options import FileTable, HubTable, ReadOptions, Source, most_dropped, numbered_sources
from posttrain.pipeline.tables.readers import place_of
from posttrain.pipeline.tables.store import rejected_path
from posttrain.pipeline.tables.user_splits import (
    AGREED,
    Notes,
    agreeing,
    assign_source_splits,
    assign_splits,
    check_splits,
    rows_text,
    select_parts,
    split_shares,
)

_SPLIT_TITLES: Final[dict[Split, str]] = {"train": "train", "heldout": "held out", "test": "test"}
_FROM: Final = ("source", *ORIGIN)
"""A row's source in the list, its file and its line."""
_WORKING: Final = (*_FROM, "fixed")
"""The columns that a row has until its table is made. `fixed`: its source names its split."""


@dataclass
class ReadSource:
    """One source's converted rows with its own splits. `count` includes rejected rows."""

    source: ReadOptions
    rows: pl.DataFrame
    refused: list[RefusedRow]
    count: int
    log: Notes
    shares: Mapping[Split, float] = field(default_factory=dict)


def read_sources(
    source: Source | Sequence[Source], kind: Kind, where: str, root: Path, *, outside_workspace: bool
) -> list[ReadSource]:
    """Return the converted rows of each source of a table."""
    sources = numbered_sources(where, source).items()
    alone = len(sources) == 1
    return [_read(one, kind, key, root, outside_workspace=outside_workspace, alone=alone) for key, one in sources]


def split_tables(reads: Mapping[Kind, list[ReadSource]], where: str) -> dict[Kind, pl.DataFrame]:
    """Return the rows of every table of an entry with ids and splits that agree between the tables."""
    tested = any("test" in set(read.rows["split"]) for read in reads.get("prompts", []))
    tables = {kind: _with_splits(sources, kind, tested=tested) for kind, sources in reads.items()}
    dropping = [kind for kind, sources in reads.items() if all(read.source.bad_rows != "stop" for read in sources)]
    agreed, wrong = agreeing(tables, dropping, lambda kind, line: reads[kind][0].log(line))
    across = _across_tables(tables, wrong) if wrong.height else wrong
    if across.height:
        raise _disagreement(across, reads, where)
    return agreed


def _across_tables(tables: Mapping[Kind, pl.DataFrame], wrong: pl.DataFrame) -> pl.DataFrame:
    """Return the rows for which tables disagree.

    A table that disagrees with itself is rejected later, with its rows.
    """
    rows = [table.filter("fixed").select("problem", "split") for table in tables.values() if "problem" in table.columns]
    inside = [row.group_by("problem").agg(pl.col("split").n_unique()).filter(pl.col("split") > 1) for row in rows]
    return wrong.join(pl.concat(inside), on="problem", how="anti", maintain_order="left")


def _disagreement(wrong: pl.DataFrame, reads: Mapping[Kind, list[ReadSource]], where: str) -> DataError:
    """Return an error with the rows whose files name another split than another table's, and how to leave them out."""
    rows = wrong.head(LISTED).iter_rows(named=True)
    listed = [f"{place_of(row['file'], row['line'])}: {row['split']}, elsewhere {row[AGREED]}" for row in rows]
    group, run = where.rsplit(".", 1)
    lines = [*(f"{'  ' * depth}{name}:" for depth, name in enumerate(group.split("."))), f"    {run}:"]
    if not isinstance(next(iter(reads.values()))[0].source, FileTable | HubTable):
        lines.append("      bad_rows: drop")
    for kind in wrong["kind"].unique(maintain_order=True) if not lines[-1].endswith("drop") else ():
        sources: Any = [{**read.source.model_dump(exclude_unset=True), "bad_rows": "drop"} for read in reads[kind]]
        lines.append(f"      {kind}: {_flow(sources[0] if len(sources) == 1 else sources)}")
    what = f"{rows_text(wrong.height)} whose problem is in another split in another table's files:"
    fix = "Remove these rows, or leave them out with these lines in params.yaml:"
    return DataError(what="\n  ".join([what, *listed]), where=where, fix="\n".join([fix, *lines]))


def _flow(value: Any) -> str:
    """Return a value as YAML on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    plain = isinstance(value, str) and re.fullmatch(r"[A-Za-z_/][\w./-]*", value)
    return str(value) if plain else json.dumps(value, ensure_ascii=False)


def make_table(rows: pl.DataFrame, reads: Sequence[ReadSource], kind: Kind, where: str, table: Path) -> pl.DataFrame:
    """Return the rows as a checked table without duplicates. Rows that violate a rule are dropped or raise an error.

    Rejected rows are written next to `table`, the file for the table.
    """
    log, count = Notes(where), sum(read.count for read in reads)
    refused = [(index, row) for index, read in enumerate(reads) for row in read.refused]
    shares = {split: max(read.shares[split] for read in reads) for split in reads[0].shares}
    sources = [read.source for read in reads]
    rows = _without_duplicates(_ordered(rows, kind), log)
    failures = row_failures(rows.drop(_WORKING), kind) if rows.height else []
    for drops in (False, True):
        chosen = [index for index, source in enumerate(sources) if (source.bad_rows != "stop") == drops]
        rejected, lines = _rejected_rows(rows, failures, refused, kind, chosen)
        if not lines:
            continue
        reasons = _reasons(rows, failures, refused, chosen)
        over = next(
            (read for index, read in enumerate(reads) if index in chosen and _too_many(rejected, index, read)), None
        )
        if not drops or over is not None:
            what = f"of {rows_text(count)} break the rules of a '{kind}' table" + ("" if over is None else _more(over))
            raise _rejection(rejected, [lines, reasons], f"{what}:", where, table, over)
        write_parquet(rejected.drop("source"), rejected_path(table))
        example = f"{lines[0]} ({rejected_path(table)} lists all)"
        log(f"{rows_text(rejected.height)} left out (bad_rows: drop), e.g. {example}")
        for line in reasons if len(reasons) > 1 else ():
            log(line)
        rows = rows.join(rejected, on=_FROM, how="anti", maintain_order="left")
    mixed = mix_by_weight(rows, sources, where, log)
    notes = [line for told in (*(read.log for read in reads), log) for line in told.lines]
    check_splits(mixed, sources[0], kind, where, count, notes)
    good = mixed.drop(_WORKING)
    _print_summary(good, shares, kind, count, log)
    return good


def _too_many(rejected: pl.DataFrame, index: int, read: ReadSource) -> bool:
    """Tell whether more rows of a source are wrong than `bad_rows` permits."""
    most = most_dropped(read.source.bad_rows)
    return most is not None and rejected.filter(source=index).height > most * read.count


def _more(read: ReadSource) -> str:
    most = most_dropped(read.source.bad_rows)
    return f", more of {read.source.place} than bad_rows: {{drop: {most:g}}} leaves out"


def _reasons(
    rows: pl.DataFrame, failures: Sequence[Failure], refused: Sequence[tuple[int, RefusedRow]], sources: Sequence[int]
) -> list[str]:
    """Return each reason with its number of rows, the most frequent first. In ties, unconverted rows come first."""
    counts, alike = Counter[str](), dict[str, Counter[str]]()
    for index, row in refused:
        if index in sources:
            alike.setdefault(_kind_of(row.reason), Counter())[row.reason] += 1
    for alike_rows in alike.values():
        example = next(iter(alike_rows))
        counts[example if len(alike_rows) == 1 else f"such as: {example}"] += alike_rows.total()
    for failure in failures:
        reason = f"{failure.column} {failure.rule}"
        counts[reason] += int(rows["source"].gather(failure.rows).is_in(sources).sum())
    return [f"{rows_text(count)}: {reason}" for reason, count in counts.most_common() if count]


def _kind_of(reason: str) -> str:
    """Return a reason without numbers and quoted values. The first quoted text, the column's name, stays."""
    name, quoted, rest = re.match(r"([^'\"]*)('[^']*'|\"[^\"]*\")?(.*)", reason, re.DOTALL).groups("")  # type: ignore[union-attr]
    return re.sub(r"\d+", "_", name) + quoted + re.sub(r"'[^']*'|\"[^\"]*\"|\d+", "_", rest)


def tried(read: ReadSource, kind: Kind) -> tuple[pl.DataFrame, pl.DataFrame, list[str]]:
    """Return a single source's rows, the rows that violate a rule, and lines about the first of these."""
    rows = _ordered(_with_splits([replace(read)], kind, tested=False), kind)
    rows = rows.filter(rows.select(pl.struct("id", "split").is_first_distinct()).to_series())
    failures = row_failures(rows.drop(_WORKING), kind) if rows.height else []
    return rows, *_rejected_rows(rows, failures, [(0, row) for row in read.refused], kind, [0])


def _read(source: Source, kind: Kind, where: str, root: Path, *, outside_workspace: bool, alone: bool) -> ReadSource:
    """Return the rows of one source with its own splits. The table's rules are checked later."""
    log = Notes(where)
    if isinstance(source, HubTable):
        parts = hub_parts(source, where, log)
    else:
        parts = _file_parts(source, FileFinder(where, outside_workspace, source.dialect), root, log)
    parts = select_parts(parts, source, kind, where, log, alone=alone)
    read = read_parts(parts, kind, source, source.limit, where)
    made = named_splits(read, list(parts), source, kind, where, alone=alone)
    if read.limited:
        made.log(f"read only the first {source.limit:,} rows of each split (limit)")
    if read.unwanted:
        made.log(f"{rows_text(read.unwanted)} left out by `where`")
    return made


def named_splits(
    read: ConvertedRows, names: list[str], source: ReadOptions, kind: Kind, where: str, *, alone: bool = True
) -> ReadSource:
    """Return converted rows with the splits from their source or their own column `split`."""
    rows = assign_source_splits(read, names, source, kind, where, alone=alone)
    return ReadSource(source, rows, read.refused, rows.height + len(read.refused), Notes(where))


def _with_splits(reads: list[ReadSource], kind: Kind, *, tested: bool) -> pl.DataFrame:
    """Return the rows of a table's sources with ids and splits. The rows are removed from `reads`."""
    frames = []
    for index, read in enumerate(reads):
        read.shares = split_shares(set(read.rows["split"]), read.source, kind, tested=tested)
        split = assign_splits(read.rows, read.source, kind, read.log, tested=tested)
        read.rows = pl.DataFrame()  # a large table fits the memory two or three times, not five times
        origin = split.select(pl.lit(index, pl.UInt32()).alias("source"), *ORIGIN, "fixed")
        frames.append(with_ids(split, kind).hstack(origin))
    return pl.concat(frames, how="diagonal")


def _ordered(rows: pl.DataFrame, kind: Kind) -> pl.DataFrame:
    """Return the rows with the table's columns in order, even if only some sources have the optional ones."""
    optional = [name for name in OPTIONAL.get(kind, {}) if name in rows.columns]
    return rows.select(*COLUMNS[kind], *optional, *_WORKING)


def _file_parts(source: FileTable, finder: FileFinder, root: Path, log: Notes) -> Parts:
    parts = finder.find(source.path, root, source.splits.values())
    if finder.ignored:
        log(f"not read: {', '.join(finder.ignored)}")
    return parts


def _without_duplicates(rows: pl.DataFrame, log: Notes) -> pl.DataFrame:
    """Return one row for each id and split: a row whose file names the split, else the first.

    A row that a share moves into `test` lacks the `info` that its copy in the test file may have.
    """
    placed = rows.select("id", "split", "fixed").with_row_index("place").sort(~pl.col("fixed"), "place")
    places = placed.filter(placed.select(pl.struct("id", "split").is_first_distinct()).to_series())["place"].sort()
    if len(places) == rows.height:
        return rows
    log(f"{rows_text(rows.height - len(places))} left out: duplicates of an earlier row of the same split")
    return rows[places]


def _rejected_rows(
    rows: pl.DataFrame,
    failures: Sequence[Failure],
    refused: Sequence[tuple[int, RefusedRow]],
    kind: Kind,
    sources: list[int],
) -> tuple[pl.DataFrame, list[str]]:
    """Return some sources' rejected rows with origin and reason, and an error's lines about the first ones."""
    unreadable = [(index, row) for index, row in refused if index in sources]
    broken = [
        replace(failure, rows=failure.rows.filter(rows["source"].gather(failure.rows).is_in(sources)))
        for failure in failures
    ]
    broken = [failure for failure in broken if len(failure.rows)]
    lines = [f"{place_of(row.file, row.line)}: {row.reason}" for _, row in unreadable[:LISTED]]
    lines += failure_lines(rows, broken, lambda row: place_of(rows["file"][row], rows["line"][row]))
    schema = {"source": pl.UInt32(), "file": pl.String(), "line": pl.UInt32(), "reason": pl.String()}
    values = [(index, row.file, row.line, row.reason) for index, row in unreadable]
    parts = [pl.DataFrame(values, schema=schema, orient="row")]
    if broken:
        parts.append(rejected_rows(rows, broken).drop("row").select(*_FROM, "reason", *COLUMNS[kind].keys()))
    return pl.concat(parts, how="diagonal"), lines


def _rejection(
    rejected: pl.DataFrame, said: Sequence[list[str]], what: str, where: str, table: Path, over: ReadSource | None
) -> TableError:
    """Return the error about rejected rows. `said`: lines about the first, and every reason with its count."""
    lines, reasons = said
    more = [f"and {rejected.height - len(lines):,} more"] if rejected.height > len(lines) else []
    more += ["Every reason:", *reasons] if more or (over is not None and len(reasons) > 1) else []
    write_parquet(rejected.drop("source"), rejected_path(table))
    choice = "set bad_rows: drop" if over is None else "raise the share of bad_rows"
    fix = f"Fix or remove these rows, or {choice}; {rejected_path(table)} lists them all"
    return TableError(what="\n  ".join([f"{rejected.height:,} {what}", *lines, *more]), where=where, fix=fix)


def _print_summary(table: pl.DataFrame, shares: Mapping[Split, float], kind: Kind, count: int, log: Notes) -> None:
    """Print how many rows were read and how many are in each split."""
    parts = []
    for split in SPLITS[kind]:
        share = f" ({split}_share {shares[split]:g})" if shares.get(split) else ""
        parts.append(f"{table.filter(split=split).height:,} {_SPLIT_TITLES[split]}{share}")
    log(f"{rows_text(count)}: {', '.join(parts)}")
    if kind == "chat":
        roles = pl.col("messages").list.eval(pl.element().struct.field("role") == "assistant")
        if several := table.filter(roles.list.sum() > 1).height:
            log(f"{rows_text(several)} with several assistant turns: sft trains on all of them (turns: last, the last)")
    column = {"corpus": "", "chat": "messages"}.get(kind, "prompt")
    if column and (twice := table.filter(_two_users(column)).height):
        log(f"{rows_text(twice)} with two consecutive user turns: some templates join them, others reject them")
    if kind == "prompts" and 0 < (unanswered := table.filter(answer="").height) < table.height:
        log(f"{rows_text(unanswered)} without an answer: rewards that compare with the answer skip them")


def _two_users(column: str) -> pl.Expr:
    """Tell whether two consecutive turns are the user's."""
    role = pl.element().struct.field("role")
    return pl.col(column).list.eval((role == "user") & (role.shift() == "user")).list.any()
