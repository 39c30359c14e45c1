"""Several sources of one table: how many training rows of each are used, by weight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from posttrain.errors import DataError
from posttrain.tables.options import Source
from posttrain.tables.user_splits import Say

_TRAIN: Final = pl.col("split") == "train"


def mixed(rows: pl.DataFrame, sources: Sequence[Source], where: str, say: Say) -> pl.DataFrame:
    """The rows, with as many training rows of each source as the weights ask for; all of them without weights.

    Which rows of a source are used is decided by their ids, which are hashes, so that it never depends on their order.
    """
    weights = [one.weight for one in sources if one.weight is not None]
    if not weights:
        return rows
    known: dict[int, int] = dict(rows.filter(_TRAIN)["source"].value_counts().rows())
    found = [known.get(nth, 0) for nth in range(len(sources))]
    used = shares(found, weights)
    if 0 in used:
        nth = used.index(0)
        what = f"{sources[nth].place} gives {found[nth]:,} training rows, and its weight {weights[nth]:g} leaves none"
        fix = "Remove this source, raise its weight, or give the others more rows"
        raise DataError(what=f"source {nth} of the list: {what}", where=where, fix=fix)
    for source, weight, rest, taken in zip(sources, weights, found, used, strict=True):
        say(f"{taken:,} of {rest:,} training rows of {source.place} used, {rest - taken:,} left (weight {weight:g})")
    limit = pl.col("source").replace_strict(dict(enumerate(used)), return_dtype=pl.UInt32())
    ordered = rows.sort("id")
    kept = ordered.filter(~_TRAIN | (_TRAIN.cum_sum().over("source") <= limit))
    # in turns, because some runs use only the first rows of a split
    turn = (pl.int_range(pl.len()) / pl.len()).over("source", "split")
    return kept.sort(turn, maintain_order=True)


def shares(found: Sequence[int], weights: Sequence[float]) -> list[int]:
    """How many rows of each source are used: the most whose shares follow the weights, so that one is used up."""
    unit = min(count / weight for count, weight in zip(found, weights, strict=True))
    return [min(count, round(weight * unit)) for count, weight in zip(found, weights, strict=True)]
