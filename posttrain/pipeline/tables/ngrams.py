"""Word n-grams of many texts as 64-bit hashes, computed on whole arrays. A Python loop over words would take minutes.

A word is a run of letters and digits in lower case. Each Chinese or Japanese character is a word. The hashes are the
same on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
import polars as pl

from posttrain.data.columns import TURNS, Kind

_TEXTS: Final = 8192
_BYTES: Final = 2**21
"""The most texts, and bytes of text, that are hashed at a time, to limit memory."""
_BASE: Final = 0x9E3779B97F4A7C15
_OTHER: Final = 0xC2B2AE3D27D4EB4F
"""Odd factors of the polynomial hashes of characters and words."""

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Grams:
    """The n-grams of some texts. Text i has `values[starts[i]:starts[i + 1]]`."""

    values: Array
    starts: Array

    @property
    def texts(self) -> Array:
        """Return the text index of each n-gram."""
        return np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))


def row_texts(frame: pl.DataFrame, kind: Kind) -> pl.Series:
    """Return all content of each row as one text, including tool calls and reasoning.

    The list of tools is left out, because all rows share it and would look similar.
    """
    named = {"corpus": ["text"], "chat": ["messages"], "prompts": ["prompt", "answer"]}
    columns = named.get(kind) or ["prompt", *(name for name in ("completion", "chosen", "rejected") if name in frame)]
    parts = [_joined(pl.col(name)) if frame.schema[name] == TURNS else pl.col(name) for name in columns]
    if kind == "chat" and "fields" in frame.columns:  # JSON, of which only the values count
        values = pl.col("fields").str.replace_all(r'"\w+": ?', " ").fill_null("")
        parts.append(pl.when(values == "").then(pl.lit(None, pl.String())).otherwise(values))
    return frame.select(pl.concat_str(parts, separator="\n", ignore_nulls=True)).to_series()


def user_texts(frame: pl.DataFrame, kind: Kind) -> pl.Series:
    """Return the user turns of each row as one text; for a corpus, the text."""
    if kind == "corpus":
        return frame["text"]
    turns = pl.col("messages" if kind == "chat" else "prompt")
    user_turns = turns.list.filter(pl.element().struct.field("role") == "user")
    return frame.select(_joined(user_turns)).to_series()


def texts_without_system(frame: pl.DataFrame, kind: Kind) -> pl.Series:
    """Return all content of each row except system turns, as one text."""
    columns = [name for name, dtype in frame.schema.items() if dtype == TURNS]
    other_turns = [pl.col(name).list.filter(pl.element().struct.field("role") != "system") for name in columns]
    return row_texts(frame.with_columns(other_turns), kind)


def chunks(texts: pl.Series) -> Iterator[tuple[int, pl.Series]]:
    """Yield parts of the texts with the index of each part's first text."""
    for start, end in spans(texts.str.len_bytes().cast(pl.Int64).to_numpy(), _TEXTS):
        yield start, texts.slice(start, end - start)


def spans(sizes: Array, most: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of parts with at most `most` items and _BYTES bytes. A larger single item is one part."""
    ends, start = sizes.cumsum(), 0
    while start < len(ends):
        before = ends[start - 1] if start else 0
        fitting = int(np.searchsorted(ends, before + _BYTES, side="right"))
        end = min(max(fitting, start + 1), start + most)
        yield start, end
        start = end


def grams(texts: pl.Series, size: int) -> Grams:
    """Return every `size` consecutive words of each text.

    A shorter text is one n-gram; a text without words has none.
    """
    words, starts = _words(texts)
    counts = np.diff(starts)
    if not len(words):
        return Grams(words, np.zeros(len(texts) + 1, dtype=np.int64))
    powers = _powers(_OTHER, size)
    rolled = np.zeros(len(words), dtype=np.uint64)
    for offset in range(min(size, int(counts.max()))):
        # beyond a text's end these run into the next one; such n-grams are left out below
        rolled[: len(words) - offset] += words[offset:] * powers[offset]
    short = np.flatnonzero((counts > 0) & (counts < size))
    place = np.arange(len(words))
    inside = place + size <= np.repeat(starts[1:], counts)
    inside[starts[short]] = True
    for text in np.unique(counts[short]):
        first = starts[short[counts[short] == text]]
        rolled[first] = sum((words[first + offset] * powers[offset] for offset in range(text)), np.uint64(0))
    values = _mixed(rolled[inside])
    sizes = np.where(counts >= size, counts - size + 1, np.minimum(counts, 1))
    return Grams(values, np.concatenate([[0], np.cumsum(sizes)]))


def _joined(turns: pl.Expr) -> pl.Expr:
    return turns.list.eval(pl.element().struct.field("content")).list.join("\n")


def _words(texts: pl.Series) -> tuple[Array, Array]:
    """Return each word's hash sum(byte_i p^i) without the factor p^-start, and where each text's words begin."""
    plain = texts.map_elements(str.casefold, return_dtype=pl.String).str.replace_all(r"[^\p{L}\p{M}\p{N}]+", " ")
    plain = plain.str.replace_all(r"([\p{Han}\p{Hiragana}\p{Katakana}])", " $1 ").rechunk()
    arrow = plain.to_arrow(compat_level=pl.CompatLevel.oldest())
    _, offsets, data = arrow.buffers()
    at = np.frombuffer(offsets, dtype=np.int64, count=len(texts) + 1 + arrow.offset)[arrow.offset :]
    letters = np.frombuffer(data, dtype=np.uint8, count=at[-1])[at[0] :] if data is not None else np.empty(0, np.uint8)
    at = at - at[0]
    word = letters != ord(" ")
    begins = word.copy()
    begins[1:] &= ~word[:-1]
    first = at[:-1][at[:-1] < at[1:]]
    begins[first] = word[first]
    starts = np.flatnonzero(begins)
    if not len(starts):
        return np.empty(0, dtype=np.uint64), np.zeros(len(texts) + 1, dtype=np.int64)
    weighted = letters.astype(np.uint64) * word * _powers(_BASE, len(letters))
    sums = np.add.reduceat(weighted, starts)
    inverse = _powers(pow(_BASE, -1, 2**64), len(letters))
    return _mixed(sums * inverse[starts]), np.searchsorted(starts, at)


def _powers(base: int, count: int) -> Array:
    """Return base^0, base^1, ... modulo 2^64, with a power of two as length, so that few arrays are cached."""
    return _cached_powers(base, 1 << max(count - 1, 1).bit_length())[:count]


@cache
def _cached_powers(base: int, count: int) -> Array:
    factors = np.full(count, base, dtype=np.uint64)
    factors[0] = 1
    powers: Array = np.multiply.accumulate(factors)
    return powers


def _mixed(values: Array) -> Array:
    """Return splitmix64's finalizer, in which every input bit changes half of the output bits."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Array = values ^ (values >> np.uint64(31))
    return mixed
