"""Near-duplicates of texts."""

from __future__ import annotations

import polars as pl

from posttrain.pipeline.tables.near_duplicates import NearDuplicate, near_duplicates

WORDS = " ".join(f"word{nth}" for nth in range(40))


def test_only_the_first_of_a_group_is_left() -> None:
    other = " ".join(f"other{nth}" for nth in range(40))
    found = near_duplicates(pl.Series([WORDS, other, WORDS.upper(), f"{WORDS} more", "", ""]), 0.8)
    # 36 shingles of five words each; one more word adds one
    assert found == [NearDuplicate(2, 0, 1.0), NearDuplicate(3, 0, 36 / 37)]


def test_texts_below_the_threshold_stay() -> None:
    assert near_duplicates(pl.Series([WORDS, f"{WORDS} more"]), 0.98) == []
    assert near_duplicates(pl.Series([], dtype=pl.String), 0.8) == []
