"""Values of rows as short texts."""

from __future__ import annotations

import polars as pl

from posttrain.data.shown import printable, short_repr


def test_short_repr() -> None:
    assert short_repr("a") == "'a'" and short_repr(pl.Series([1, 2])) == "[1, 2]" and short_repr(3) == "3"
    assert len(short_repr("x" * 5000)) < 320


def test_printable() -> None:
    assert printable("a\x1b[0m\u202eé") == r"a\x1b[0m\u202eé"
