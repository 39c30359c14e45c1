"""Short texts of row values for messages."""

from __future__ import annotations

from typing import Any

import polars as pl

from posttrain.errors import excerpt


def short_repr(value: Any) -> str:
    """Return a value as one short line."""
    if isinstance(value, pl.Series):
        value = value.to_list()
    return excerpt(value[:300] if isinstance(value, str | list) else value)


def printable(text: str) -> str:
    """Return the text with control characters and surrogates escaped, so that a terminal can print it."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
