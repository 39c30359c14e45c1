"""Mix several sources into one table: decide by weight how many training rows of each are used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from posttrain.errors import DataError
from posttrain.pipeline.tables.options import ReadOptions
from posttrain.pipeline.tables.user_splits import Log

_TRAIN: Final = pl.col("split") == "train"


def mix_by_weight(rows: pl.DataFrame, sources: Sequence[ReadOptions], where: str, log: Log) -> pl.DataFrame:
    """Return the rows, with the number of training rows per source that the weights require; without weights, all.

    A source whose rows are all held-out or test rows has no share. The ids, which are hashes, decide which rows of a
    source are used, so the choice never depends on their order.
    """
    weights = [options.weight for options in sources if options.weight is not None]
    if not weights:
        return rows
    known: dict[int, int] = dict(rows.filter(_TRAIN)["source"].value_counts().rows())
    held_out = {*rows["source"].unique()} - {*rows.filter(_TRAIN | ~pl.col("fixed"))["source"].unique()}
    available = {index: known.get(index, 0) for index in range(len(sources)) if index not in held_out}
    if not available:
        return rows
    shares = rows_per_source([*available.values()], [weights[index] for index in available])
    used = dict(zip(available, shares, strict=True))
    for index, count in sorted(used.items(), key=lambda item: available[item[0]]):
        if count == 0:  # of several the one with the fewest rows, which leaves the others none
            rows_there = f"{available[index]:,} training rows of {sources[index].place}"
            what = f"with weight {weights[index]:g}, none of its {rows_there} are used"
            fix = "Remove this source, raise its weight, or give the other sources more rows"
            raise DataError(what=what, where=f"{where}.{index}", fix=fix)
    for index, count in used.items():
        rest, place = available[index], sources[index].place
        log(f"{count:,} of {rest:,} training rows of {place} used, {rest - count:,} left (weight {weights[index]:g})")
    limit = pl.col("source").replace_strict(used, default=0, return_dtype=pl.UInt32())
    ordered = rows.sort("id")
    mixed = ordered.filter(~_TRAIN | (_TRAIN.cum_sum().over("source") <= limit))
    # the sources alternate, because some runs use only the first rows of a split
    position = (pl.int_range(pl.len()) / pl.len()).over("source", "split")
    return mixed.sort(position, maintain_order=True)


def rows_per_source(available: Sequence[int], weights: Sequence[float]) -> list[int]:
    """Return the number of rows to use from each source: the maximum that the weights allow."""
    unit = min(count / weight for count, weight in zip(available, weights, strict=True))
    return [min(count, round(weight * unit)) for count, weight in zip(available, weights, strict=True)]
