"""Remove rows of a table that are too short or too long, near-duplicates, or contaminated by an evaluation."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl
from pydantic import Field, model_validator

from posttrain.data.columns import SPLITS, Kind
from posttrain.data.parquet import write_parquet
from posttrain.errors import DataError, ParamsError
from posttrain.measure.phases import phase
from posttrain.pipeline.params.slots import table_of, table_slot
from posttrain.pipeline.tables.near_duplicates import near_duplicates
from posttrain.pipeline.tables.ngrams import Array, chunks, grams, row_texts, texts_without_system, user_texts
from posttrain.pipeline.tables.store import read_table, rejected_path
from posttrain.pipeline.tables.user_splits import rows_text
from posttrain.pipeline.workspace import PARAMS_FILE, table_path
from posttrain.settings.params import Params

COMMON: Final = 10
"""An n-gram in more rows of an evaluation than this counts as part of its template."""
KINDS: Final[tuple[Kind, ...]] = ("corpus", "chat", "prompts", "pairs", "feedback")


class FilterRun(Params):
    """One run of `data.filters`: a table of the same kind with fewer rows."""

    data: str = table_slot(*KINDS, description="the table to filter")
    against: str = table_slot(
        *KINDS,
        description="the table of an evaluation; training rows that overlap with its held-out or test rows are "
        "left out",
        optional=True,
    )
    ngram: int = Field(
        13, ge=3, le=100, description="`against`: number of equal consecutive words that counts as an overlap"
    )
    near_duplicates: float | None = Field(
        None, ge=0.3, le=1, description="keep one of the rows that are at least this similar (Jaccard, 5-word shingles)"
    )
    min_chars: int | None = Field(
        None, ge=1, description="leave out rows with fewer characters, counted over all turns"
    )
    max_chars: int | None = Field(None, ge=1, description="leave out rows with more characters, counted over all turns")

    @model_validator(mode="after")
    def _leaves_something(self) -> FilterRun:
        if self.min_chars and self.max_chars and self.min_chars > self.max_chars:
            raise ValueError(f"min_chars ({self.min_chars}) must be <= max_chars ({self.max_chars})")
        return self


@phase("load")
def filtered(
    run: str, params: FilterRun, scored: Callable[[pl.DataFrame, Kind], tuple[pl.DataFrame, str]] | None = None
) -> tuple[Kind, pl.DataFrame]:
    """Return the filtered table. Removed rows are written to a file with reason and match.

    Each filter prints its count.

    `scored` returns the rows that other filters keep but their score excludes, and the reason.
    """
    where = f"data.filters.{run}"
    kind = next(candidate for candidate in KINDS if params.data.endswith(f"/{candidate}"))
    table = read_table(table_path(params.data), kind)
    left, removed = table, list[tuple[str, pl.DataFrame]]()

    def leave_out(removed_rows: pl.DataFrame, why: str) -> None:
        nonlocal left
        print(f"{where}: {removed_rows.height:,} of {rows_text(left.height)} left out: {why}", file=sys.stderr)
        removed.append((why, removed_rows.join(left, on="id", how="left", maintain_order="left")))
        left = left.join(removed_rows, on="id", how="anti", maintain_order="left")

    if params.min_chars or params.max_chars:
        limits = f"min_chars {params.min_chars or 'none'}, max_chars {params.max_chars or 'none'}"
        leave_out(_by_length(left, kind, params), f"shorter or longer than {limits}")
    if (other := table_of(params.against)) is not None:
        removed_rows, ignored = _contaminated(left, kind, other, params)
        known = f" ({ignored:,} n-grams that more than {COMMON} of its rows share are ignored)" if ignored else ""
        leave_out(removed_rows, f"{params.ngram} words in a row, or a shorter question, are in {params.against}{known}")
    if params.near_duplicates is not None:
        removed_rows = _near_duplicates(left, kind, params.near_duplicates, params.data)
        leave_out(removed_rows, f"near-duplicates of another row (similarity {params.near_duplicates:g} or more)")
    if scored is not None:
        leave_out(*scored(left, kind))
    place = rejected_path(Path("rejected") / run / f"{kind}.parquet")
    listed = [_listed(frame) for frame in (table.clear(), *(removed_rows for _, removed_rows in removed))]
    write_parquet(pl.concat(listed, how="diagonal_relaxed"), place)
    _check_left(left, table, removed, kind, where)
    counts = ", ".join(f"{left.filter(split=split).height:,} {split}" for split in SPLITS[kind])
    print(
        f"{where}: {left.height:,} of {rows_text(table.height)} kept ({counts}); {place} lists the others",
        file=sys.stderr,
    )
    return kind, left


def _check_left(
    left: pl.DataFrame, table: pl.DataFrame, removed: Sequence[tuple[str, pl.DataFrame]], kind: Kind, where: str
) -> None:
    """Reject a table that lost all rows of a split. The error counts the rows that each filter removed."""
    for split in SPLITS[kind]:
        if (before := table.filter(split=split).height) and left.filter(split=split).is_empty():
            taken = [f"{rows.filter(split=split).height:,} left out: {why}" for why, rows in removed]
            what = f"no row of the split '{split}' remains of {rows_text(before)} ({'; '.join(taken)})"
            place = rejected_path(Path("rejected") / where.rpartition(".")[2] / f"{kind}.parquet")
            fix = f"Relax the filters; {place} lists the rows with reasons"
            raise DataError(what=what, where=f"{where} ({PARAMS_FILE})", fix=fix)


def _listed(rows: pl.DataFrame) -> pl.DataFrame:
    """Return removed rows, with `reason` and the matching table and row in the first columns."""
    front = ("reason", "match_table", "match_id", "similarity")
    types = (pl.String(), pl.String(), pl.String(), pl.Float64())
    missing = [pl.lit(None, dtype).alias(name) for name, dtype in zip(front, types, strict=True) if name not in rows]
    return rows.with_columns(missing).select(*front, pl.exclude(front))


def _by_length(table: pl.DataFrame, kind: Kind, params: FilterRun) -> pl.DataFrame:
    sizes = row_texts(table, kind).str.len_chars()
    few, many = sizes < (params.min_chars or 0), sizes > (params.max_chars or sizes.max())
    return table.select("id", reason=pl.format("{} characters", sizes)).filter(few | many)


def _near_duplicates(table: pl.DataFrame, kind: Kind, threshold: float, name: str) -> pl.DataFrame:
    """Return rows that are similar to another one. Held-out rows are kept before training rows, then the first row."""
    rank = pl.col("split").replace_strict({"test": 0, "heldout": 1, "train": 2}, return_dtype=pl.Int8())
    ordered = table.with_row_index("place").sort(rank, "place")
    duplicates = near_duplicates(row_texts(ordered, kind), threshold)
    ids = ordered["id"]
    schema = {name: dtype for name, dtype in table.schema.items() if name == "id"}
    return pl.DataFrame(
        {
            "id": [ids[duplicate.text] for duplicate in duplicates],
            "reason": ["near-duplicate"] * len(duplicates),
            "match_table": [name] * len(duplicates),
            "match_id": [ids[duplicate.first] for duplicate in duplicates],
            "similarity": [duplicate.similarity for duplicate in duplicates],
        },
        schema={
            **schema,
            **dict.fromkeys(("reason", "match_table", "match_id"), pl.String()),
            "similarity": pl.Float64(),
        },
    )


def _contaminated(table: pl.DataFrame, kind: Kind, file: Path, params: FilterRun) -> tuple[pl.DataFrame, int]:
    """Return training rows that share an n-gram with a held-out or test question, and the count of ignored n-grams."""
    other: Kind = next(candidate for candidate in KINDS if file.stem == candidate)
    evaluation_rows = read_table(file, other).filter(pl.col("split") != "train")
    if evaluation_rows.is_empty():
        fix = "Give that table a split heldout or test, e.g. by heldout_share"
        what = f"against = {params.against}: this table has no held-out or test rows to compare with"
        raise ParamsError(what=what, where=PARAMS_FILE, fix=fix)
    wanted, rows, ignored = _evaluation_ngrams(user_texts(evaluation_rows, other), params.ngram)
    train = table.filter(split="train")
    matches = np.full(train.height, -1, dtype=np.int64)
    for texts in (texts_without_system(train, kind), user_texts(train, kind)):
        for start, part in chunks(texts):
            _match(matches[start : start + len(part)], part, params.ngram, wanted, rows)
    hit = np.flatnonzero(matches >= 0)
    overlapping = train.select("id")[hit].with_columns(
        reason=pl.lit(f"has {params.ngram} consecutive words, or the question, of an evaluation row"),
        match_table=pl.lit(params.against),
        match_id=evaluation_rows["id"].gather(matches[hit]),
    )
    return overlapping, ignored


def _evaluation_ngrams(texts: pl.Series, size: int) -> tuple[Array, Array, int]:
    """Return an evaluation's sorted n-grams with the first row of each, and how many were ignored as too common."""
    pairs = [
        (part_grams.values, part_grams.texts + start)
        for start, part in chunks(texts)
        for part_grams in [grams(part, size)]
    ]
    values, rows = (np.concatenate(side) for side in zip(*pairs, strict=True))
    each = np.unique(np.stack([values, rows.astype(np.uint64)], axis=1), axis=0)
    distinct, first, counts = np.unique(each[:, 0], return_index=True, return_counts=True)
    rare = counts <= COMMON
    return distinct[rare], each[first[rare], 1].astype(np.int64), int((~rare).sum())


def _match(matches: Array, texts: pl.Series, size: int, wanted: Array, rows: Array) -> None:
    """Record for each text an evaluation row that shares an n-gram with it."""
    text_grams = grams(texts, size)
    if not len(wanted):
        return
    place = np.minimum(np.searchsorted(wanted, text_grams.values), len(wanted) - 1)
    hit = wanted[place] == text_grams.values
    matches[text_grams.texts[hit]] = rows[place[hit]]
