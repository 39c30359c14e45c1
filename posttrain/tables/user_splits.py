"""Which split the user's rows belong to: what their source or their column `split` says, or their problem's hash."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl
from pydantic import Field

from posttrain.errors import DataError
from posttrain.params import Params
from posttrain.tables.columns import SPLITS, Kind, Split
from posttrain.tables.conversion import ORIGIN, ConvertedRows, RefusedRow
from posttrain.tables.failures import printable, short_repr
from posttrain.tables.find_files import Parts
from posttrain.tables.splits import SPLIT_NAMES, split_names, splits_by_hash

Log = Callable[[str], None]
"""Prints a line about the rows of a table."""


class SplitOptions(Params):
    """How rows are divided into splits."""

    splits: dict[Split, str] = Field(
        default={}, description="Our split: the source's name of it; by default names like validation"
    )
    heldout_share: float = Field(
        default=0.05, ge=0, lt=0.5, description="Taken from train by hash if the source has no heldout"
    )
    test_share: float = Field(
        default=0.05,
        ge=0,
        lt=0.5,
        description="Taken from train by hash if the source has no test; only prompts keep these rows",
    )


def select_parts(parts: Parts, source: SplitOptions, where: str, log: Log) -> Parts:
    """The parts of the splits that are used; rows of a single part may still name their own."""
    if len(parts) == 1:
        return parts
    named = _named(list(parts), source, where)
    unread = [name for name in parts if name not in named]
    if unread:
        log(f"not read: {', '.join(map(printable, unread))}; name them under `splits` if they are splits")
    return {name: parts[name] for name in named}


def _named(names: list[str], source: SplitOptions, where: str) -> dict[str, Split]:
    """Our split of each of the source's splits; refuses a source without train or without a split that is named."""
    named = split_names(source.splits, names)
    missing = next((name for name in source.splits.values() if name not in names), None)
    if missing is not None or "train" not in named.values():
        what = f"split '{missing}' not found" if missing is not None else "the source has no split named train"
        known = printable(", ".join(names)[:300])
        fix = f"Its splits are {known}. Name them, e.g. splits: {{train: {printable(names[0])}}}"
        raise DataError(what=what, where=where, fix=fix)
    return named


def assign_source_splits(read: ConvertedRows, names: list[str], source: SplitOptions, where: str) -> pl.DataFrame:
    """The converted rows with the split that their source or their own column `split` names."""
    frame, given = read.frame, pl.col("given")
    values = frame["given"].drop_nulls().unique(maintain_order=True).to_list()
    if not values:
        return frame.with_columns(split=pl.col("source").replace_strict(_named(names, source, where)))
    if len(names) > 1:
        known = ", ".join(map(printable, names))
        what = f"the rows have a column 'split', but the source already has the splits {known}"
        raise DataError(what=what, where=where, fix="Give one file, or rename the column, e.g. rename: {split: part}")
    named = _named(values, source, where)
    known = printable(", ".join(source.splits.values() or SPLIT_NAMES))
    fix = "name it under `splits`, or rename the column if it is not a split"
    bad_rows = frame.filter(~given.is_in(list(named)).fill_null(value=False))
    for file, line, value in bad_rows.select(*ORIGIN, "given").rows():
        read.refused.append(RefusedRow(file, line, f"split = {short_repr(value)} is not one of {known}; {fix}"))
    split = given.replace_strict(named, default=None, return_dtype=pl.String())
    return frame.with_columns(split=split).drop_nulls("split")


def assign_splits(frame: pl.DataFrame, source: SplitOptions, kind: Kind, log: Log) -> pl.DataFrame:
    """The rows with the splits of this kind of table: the source's own; missing ones are taken from train by hash."""
    own = set(frame["split"])
    if "test" in own and "test" not in SPLITS[kind]:
        tests = frame.filter(split="test").height
        if "heldout" in own:
            frame = frame.filter(pl.col("split") != "test")
            log(f"{rows_text(tests)} of the test split left out: a {kind} table has none")
        else:
            frame = frame.with_columns(pl.col("split").replace("test", "heldout"))
            log(f"the {rows_text(tests)} of the test split are now held-out: a {kind} table has no test split")
    train = frame.filter(split="train")
    shares = split_shares(own, source, kind)
    split = splits_by_hash(train, kind, heldout_share=shares["heldout"], test_share=shares["test"])
    rest = [frame.filter(split=name) for name in ("heldout", "test")]
    whole = pl.concat([train.with_columns(split), *rest])
    table = whole.filter(pl.col("split").is_in(SPLITS[kind]))
    if removed := whole.height - table.height:
        log(
            f"{rows_text(removed)} left out: test_share {source.test_share:g} reserves their problems for test "
            "prompts, here or in another entry (test_share: 0 keeps them)"
        )
    return table


def split_shares(own: set[str], source: SplitOptions, kind: Kind) -> dict[Split, float]:
    """What is taken from train by hash for each split."""
    held_out = "heldout" in own or ("test" in own and "test" not in SPLITS[kind])
    return {
        "heldout": 0.0 if held_out else source.heldout_share,
        "test": 0.0 if "test" in own or kind == "corpus" else source.test_share,
    }


def check_splits(table: pl.DataFrame, source: SplitOptions, kind: Kind, where: str) -> None:
    """Refuses a table without training rows, or without rows of a split that a share promises."""
    shares = {"train": 1.0, "heldout": source.heldout_share, "test": source.test_share}
    for split in SPLITS[kind]:
        if shares[split] and table.filter(split=split).is_empty():
            fix = f"Give more rows, name a split under `splits`, or raise {split}_share (0: no such split)"
            fix = "Lower heldout_share and test_share, or give more rows" if split == "train" else fix
            what = f"the split '{split}' is empty ({rows_text(table.height)} in all)"
            raise DataError(what=what, where=where, fix=fix)


def rows_text(count: int) -> str:
    """`1 row`, `2 rows`."""
    return f"{count:,} row{'s' * (count != 1)}"
