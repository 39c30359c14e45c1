"""Decide the split of the user's rows: by their source, their column `split`, or a hash of their problem."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import polars as pl
from pydantic import Field

from posttrain.data.columns import SPLITS, Kind, Split
from posttrain.data.shown import printable, short_repr
from posttrain.data.splits import SPLIT_NAMES, split_names, splits_by_hash
from posttrain.errors import DataError
from posttrain.pipeline.tables.conversion import ORIGIN, ConvertedRows, RefusedRow
from posttrain.pipeline.tables.find_files import Parts
from posttrain.pipeline.tables.readers import place_of
from posttrain.settings.params import Params

Log = Callable[[str], None]
"""Prints a line about the rows of a table."""


def _printed(line: str) -> None:
    print(line, file=sys.stderr)


@dataclass
class Notes:
    """Lines about the rows of a table, which are printed and stored for errors that explain missing rows."""

    where: str
    say: Log = _printed
    lines: list[str] = field(default_factory=list)

    def __call__(self, line: str) -> None:
        """Print and keep a line."""
        self.say(f"{self.where}: {line}")
        self.lines.append(line)


_STRICTNESS: Final = pl.Enum(["train", "heldout", "test"])


AGREED: Final = "agreed split"
"""The column with a problem's split while tables are made to agree. No table column may have this name."""


class SplitOptions(Params):
    """Settings that divide rows into splits."""

    splits: dict[Split, str] = Field(
        default={}, description="Our split -> its name in the source; by default names like validation"
    )
    heldout_share: float = Field(
        default=0.05, ge=0, lt=0.5, description="Share taken from train by hash if the source has no heldout"
    )
    test_share: float = Field(
        default=0.05,
        ge=0,
        lt=0.5,
        description="Share taken from train by hash if the source has no test; only prompts use these rows",
    )


def select_parts(parts: Parts, source: SplitOptions, kind: Kind, where: str, log: Log, *, alone: bool) -> Parts:
    """Return the parts of the used splits. Rows of a single part may still set splits in a column."""
    if len(parts) == 1:
        return parts
    named = _named(list(parts), source, kind, where, alone=alone)
    unread = [name for name in parts if name not in named]
    if unread:
        log(f"not read: {', '.join(map(printable, unread))}; name them under `splits` if they are splits")
    return {name: parts[name] for name in named}


def _named(
    names: list[str], source: SplitOptions, kind: Kind, where: str, *, alone: bool, lost: Sequence[str] = ()
) -> dict[str, Split]:
    """Return our split for each split of the source. Reject a source without train or without a configured split.

    Prompts may be only test prompts. In a list (not `alone`), another source may have train. `lost`: the rows that were
    not used, which may explain a missing split.
    """
    named = split_names(source.splits, names)
    missing = next((name for name in source.splits.values() if name not in names), None)
    needed = {"train", "test"} if kind == "prompts" else {"train"}
    has_rows = bool(needed & {*named.values()}) if alone else bool(named)
    if missing is not None or not has_rows:
        what = f"split '{missing}' not found" if missing is not None else "the source has no split named train"
        if lost:
            what = f"none of the usable rows is in the split {missing or 'train'}: {'; '.join(lost)}"
            raise DataError(what=what, where=where, fix="Fix these rows, or use another split under `splits`")
        raise DataError(what=what, where=where, fix=_naming(names))
    return named


def _naming(names: list[str]) -> str:
    """Return how to configure a source's splits. Evaluation splits are never suggested as training data."""
    known = f"Its splits are {printable(', '.join(names)[:300])}"
    if trained := [name for name in names if SPLIT_NAMES.get(name.lower(), "train") == "train"]:
        return f"{known}. Name them, e.g. splits: {{train: {printable(trained[0])}}}"
    return f"{known}, which are for evaluation. Add a file or split with training rows"


def assign_source_splits(
    read: ConvertedRows, names: list[str], source: SplitOptions, kind: Kind, where: str, *, alone: bool
) -> pl.DataFrame:
    """Return the converted rows with the splits from their source or their own column `split`."""
    frame, given = read.frame, pl.col("given")
    values = frame["given"].drop_nulls().unique(maintain_order=True).to_list()
    if not values:
        named = _named(names, source, kind, where, alone=alone)
        return frame.with_columns(split=pl.col("source").replace_strict(named))
    if len(names) > 1:
        known = ", ".join(map(printable, names))
        what = f"the rows have a column 'split', but the source already has the splits {known}"
        raise DataError(what=what, where=where, fix="Give one file, or rename the column, e.g. rename: {split: part}")
    named = _named(values, source, kind, where, alone=alone, lost=_lost(read))
    known = printable(", ".join(source.splits.values() or SPLIT_NAMES))
    fix = "name it under `splits`, or rename the column if it is not a split"
    bad_rows = frame.filter(~given.is_in(list(named)).fill_null(value=False))
    for file, line, value in bad_rows.select(*ORIGIN, "given").rows():
        read.refused.append(RefusedRow(file, line, f"split = {short_repr(value)} is not one of {known}; {fix}"))
    split = given.replace_strict(named, default=None, return_dtype=pl.String())
    return frame.with_columns(split=split).drop_nulls("split")


def _lost(read: ConvertedRows) -> list[str]:
    """Return how many rows of a source are not used, and why."""
    lines = [f"{rows_text(read.unwanted)} left out by `where`"] if read.unwanted else []
    if read.refused:
        first = read.refused[0]
        place = place_of(first.file, first.line)
        lines.append(f"{rows_text(len(read.refused))} cannot be used, the first: {place}: {first.reason}")
    return lines


def assign_splits(frame: pl.DataFrame, source: SplitOptions, kind: Kind, log: Log, *, tested: bool) -> pl.DataFrame:
    """Return the rows with all splits of this kind of table. Rows of missing splits come from train, by hash.

    `tested`: the prompts of the same entry have their own test split. The column `fixed` marks rows whose split the
    source names itself.
    """
    present = set(frame["split"])
    if "test" in present and "test" not in SPLITS[kind]:
        tests = frame.filter(split="test").height
        if "heldout" in present or tested:
            frame = frame.filter(pl.col("split") != "test")
            why = "they are the test prompts" if tested else f"a {kind} table has none"
            log(f"{rows_text(tests)} of the test split left out: {why}")
        else:
            frame = frame.with_columns(pl.col("split").replace("test", "heldout"))
            log(f"the {rows_text(tests)} of the test split are now held-out: a {kind} table has no test split")
    train = frame.filter(split="train")
    shares = split_shares(present, source, kind, tested=tested)
    split = splits_by_hash(train, kind, heldout_share=shares["heldout"], test_share=shares["test"])
    hashed = any(shares.values()) or present <= {"train"}
    rest = [frame.filter(split=name).with_columns(fixed=pl.lit(True)) for name in ("heldout", "test")]
    whole = pl.concat([train.with_columns(split, fixed=pl.lit(not hashed)), *rest])
    table = whole.filter(pl.col("split").is_in(SPLITS[kind]))
    if removed := whole.height - table.height:
        log(
            f"{rows_text(removed)} left out: test_share {source.test_share:g} reserves their problems for test "
            "prompts, here or in another entry (test_share: 0 keeps them)"
        )
    return table


def split_shares(present: set[str], source: SplitOptions, kind: Kind, *, tested: bool) -> dict[Split, float]:
    """Return the share of train that is taken by hash for each split."""
    held_out = "heldout" in present or ("test" in present and not tested and "test" not in SPLITS[kind])
    return {
        "heldout": 0.0 if held_out else source.heldout_share,
        "test": 0.0 if tested or "test" in present or kind == "corpus" else source.test_share,
    }


def agreeing(
    tables: Mapping[Kind, pl.DataFrame], dropping: Collection[Kind], log: Callable[[Kind, str], None]
) -> tuple[dict[Kind, pl.DataFrame], pl.DataFrame]:
    """Return the tables with each problem in one split, and rows (`kind`, `file`, `line`, ...) with conflicting splits.

    A split that a source names applies in all tables. If none is named, the strictest applies: test, then heldout. If
    sources disagree, the strictest applies too, and the other rows are left out of the tables in `dropping`.
    """
    named = {kind: frame for kind, frame in tables.items() if "problem" in frame.columns}
    result, wrong = dict(tables), [pl.DataFrame()]
    if not named:
        return result, wrong[0]
    split = pl.col("split").cast(_STRICTNESS)
    rows = pl.concat([frame.select("problem", split, "fixed") for frame in named.values()])
    agreed = (
        rows.group_by("problem")
        .agg(pl.col("split").n_unique().alias("count"), _chosen(pl.col("split")).cast(pl.String()).alias(AGREED))
        .filter(pl.col("count") > 1)
        .drop("count")
    )
    for kind, frame in named.items() if agreed.height else ():
        joined = frame.join(agreed, on="problem", how="left", maintain_order="left")
        away = (pl.col("split") != pl.col(AGREED)).fill_null(value=False)
        moved = joined.filter(away & ~pl.col("fixed"))
        for name, count in sorted(moved[AGREED].value_counts().iter_rows()):
            what = f"now in {name}" if name in SPLITS[kind] else "left out"
            log(kind, f"{rows_text(count)} {what}: their problems are in the split {name} of another table or file")
        if kind in dropping and (removed := joined.filter(away, "fixed").height):
            log(
                kind,
                f"{rows_text(removed)} left out (bad_rows: drop): another table has their problems in other splits",
            )
            joined = joined.filter(~(away & pl.col("fixed")))
        wrong.append(joined.filter(away, "fixed").select("problem", "split", AGREED, *ORIGIN, kind=pl.lit(kind)))
        choice = pl.when("fixed").then("split").otherwise(pl.coalesce(AGREED, "split")).alias("split")
        result[kind] = joined.with_columns(choice).drop(AGREED).filter(pl.col("split").is_in(SPLITS[kind]))
    return result, pl.concat(wrong, how="diagonal")


def _chosen(split: pl.Expr) -> pl.Expr:
    return pl.coalesce(split.filter("fixed").max(), split.max())


def check_splits(
    table: pl.DataFrame, source: SplitOptions, kind: Kind, where: str, count: int, notes: Sequence[str]
) -> None:
    """Reject a table without training rows, or without rows in a split with a share above 0.

    `count`: the number of rows that were read. `notes`: which of them were left out or moved, and why.
    """
    shares = {"train": 1.0, "heldout": source.heldout_share, "test": source.test_share}
    if kind == "prompts" and not table.is_empty() and table["fixed"].all():
        shares = {"test": 1.0}  # its files name every split, as a file of test prompts alone does
    for split in SPLITS[kind]:
        if shares.get(split) and table.filter(split=split).is_empty():
            fix = f"Give more rows, name a split under `splits`, or raise {split}_share (0: no such split)"
            if kind == "prompts" and split != "train":
                fix = (
                    f"{fix}. If all rows are for evaluation, set splits: {{test: FILE}}, with the file's name without "
                    "its ending"
                )
            if split == "train":
                hashed = table.filter(~pl.col("fixed")).height
                fix = "Name the training rows under `splits`, or add a source with training rows"
                fix = "Lower heldout_share and test_share, or give more rows" if hashed else fix
                if notes:
                    fix = f"If these lines removed the training rows, keep the rows. Else {fix.lower()}"
            rest = [*_by_split(table, kind), *notes]
            what = f"the split '{split}' is empty. The table has {table.height:,} of the {rows_text(count)} read"
            raise DataError(what=f"{what}{': ' * bool(rest)}{'; '.join(rest)}", where=where, fix=fix)


def _by_split(table: pl.DataFrame, kind: Kind) -> list[str]:
    """Return how many rows each split has, and whether its source or a share put them there."""
    counts = []
    for split in SPLITS[kind]:
        for fixed, why in ((True, "as their source says"), (False, f"by {split}_share" if split != "train" else "")):
            if rows := table.filter(split=split, fixed=fixed).height:
                counts.append(f"{rows:,} {split}{f' ({why})' if why else ''}")
    return counts


def rows_text(count: int) -> str:
    """Return `1 row`, `2 rows`, ..."""
    return f"{count:,} row{'s' * (count != 1)}"
