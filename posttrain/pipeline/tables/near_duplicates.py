"""Find near-duplicates: MinHash proposes pairs of texts, and their exact similarity decides (Broder 1997)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl

from posttrain.pipeline.tables.ngrams import Array, chunks, grams, spans

SHINGLE: Final = 5
"""Words per shingle."""
_HASHES: Final = 128
_RECALL: Final = 0.99
"""The smallest share of pairs at the threshold that must be proposed."""
_PAIRS: Final = 4096
"""The number of pairs whose similarity is computed at a time."""
_SEED: Final = 20_240_726


@dataclass(frozen=True)
class NearDuplicate:
    """A text to leave out, the first text of its group, and its highest similarity to a text of the group."""

    text: int
    first: int
    similarity: float


def near_duplicates(texts: pl.Series, threshold: float) -> list[NearDuplicate]:
    """Return the texts to leave out, which are all except the first of each group.

    Two texts are near-duplicates if the Jaccard similarity of their shingles is at least `threshold`; a group is a
    connected component of such pairs.
    """
    left, right = _proposed(texts, threshold)
    similarity = _similarities(texts, left, right)
    alike = similarity >= threshold
    first = list(range(len(texts)))
    highest: dict[int, float] = {}
    for left_text, right_text, value in zip(
        left[alike].tolist(), right[alike].tolist(), similarity[alike].tolist(), strict=True
    ):
        a, b = sorted((_root(first, left_text), _root(first, right_text)))
        first[b] = a
        for text in (left_text, right_text):
            highest[text] = max(highest.get(text, 0.0), value)
    return [
        NearDuplicate(text, root, value)
        for text, value in sorted(highest.items())
        if (root := _root(first, text)) != text
    ]


def _root(first: list[int], text: int) -> int:
    while first[text] != text:
        first[text] = first[first[text]]
        text = first[text]
    return text


def _rows_in_a_band(threshold: float) -> int:
    """Return the most rows per band that still find pairs at the threshold: 1 - (1 - t^rows)^bands >= recall."""
    fitting = (rows for rows in range(1, 33) if 1 - (1 - threshold**rows) ** (_HASHES // rows) >= _RECALL)
    return max(fitting, default=1)


def _proposed(texts: pl.Series, threshold: float) -> tuple[Array, Array]:
    """Return pairs of neighbours, and pairs with the first text, among texts that share a band."""
    if texts.is_empty():
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    rows = _rows_in_a_band(threshold)
    bands = np.concatenate([_bands(part, rows) for _, part in chunks(texts)])
    pairs: list[Array] = []
    for band in bands.T:
        order = np.argsort(band, kind="stable")
        ordered = band[order]
        same = (ordered[1:] == ordered[:-1]) & (ordered[1:] != 0)
        starts = np.flatnonzero(np.concatenate([[True], ~same]))
        first = order[np.repeat(starts, np.diff(np.append(starts, len(order))))]
        for before in (order[:-1], first[1:]):
            pairs.append((before[same] << 32) | order[1:][same])
    distinct = np.unique(np.concatenate(pairs))
    return distinct >> 32, distinct & (2**32 - 1)


def _bands(texts: pl.Series, rows: int) -> Array:
    """Return a hash of each band of every text's signature, [texts, bands]; 0 for texts without words."""
    shingles = grams(texts, SHINGLE)
    full = np.flatnonzero(np.diff(shingles.starts))
    bands = np.zeros((len(texts), _HASHES // rows), dtype=np.uint64)
    if not len(full):
        return bands
    short, starts = (shingles.values >> np.uint64(32)).astype(np.uint32), shingles.starts[full]
    draw = np.random.Generator(np.random.PCG64(_SEED))
    factors = draw.integers(2**31, size=(_HASHES, 2), dtype=np.uint32) * 2 + 1
    for band in range(bands.shape[1]):
        combined = np.full(len(full), band + 1, dtype=np.uint64)
        for factor, shift in factors[band * rows : (band + 1) * rows]:
            least = np.minimum.reduceat(short * factor + shift, starts)
            combined = (combined * np.uint64(0x9E3779B97F4A7C15)) ^ least
            combined ^= combined >> np.uint64(29)
        bands[full, band] = combined | np.uint64(1)
    return bands


def _similarities(texts: pl.Series, left: Array, right: Array) -> Array:
    """Return the Jaccard similarity of each pair of shingle sets."""
    sizes = texts.str.len_bytes().cast(pl.Int64).to_numpy()
    cuts = spans(sizes[left] + sizes[right], _PAIRS)
    parts = [_jaccard(texts, left[start:end], right[start:end]) for start, end in cuts]
    return np.concatenate(parts) if parts else np.empty(0)


def _jaccard(texts: pl.Series, left: Array, right: Array) -> Array:
    sides = [_sets(texts, side) for side in (left, right)]
    sizes = [np.bincount(pair, minlength=len(left)) for pair, _ in sides]
    keys = np.concatenate([(pair.astype(np.uint64) << np.uint64(50)) | value for pair, value in sides])
    keys.sort()
    both = keys[1:][keys[1:] == keys[:-1]] >> np.uint64(50)
    shared = np.bincount(both.astype(np.int64), minlength=len(left))
    return shared / (sizes[0] + sizes[1] - shared)


def _sets(texts: pl.Series, side: Array) -> tuple[Any, Any]:
    """Return each pair's distinct shingles as numbers: the pair's index (below 2^13) and 50 bits of the shingle."""
    shingles = grams(texts.gather(side), SHINGLE)
    keys = np.unique((shingles.texts.astype(np.uint64) << np.uint64(50)) | (shingles.values >> np.uint64(14)))
    return (keys >> np.uint64(50)).astype(np.int64), keys & np.uint64(2**50 - 1)
