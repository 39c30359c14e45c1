"""Which split a row belongs to: what its source says, or a hash of its problem, on which every table agrees."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import polars as pl

from posttrain.errors import DataError
from posttrain.tables.columns import Kind, Split, content_ids

SPLIT_NAMES: Final[dict[str, Split]] = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("heldout", "validation", "valid", "val", "dev", "eval"), "heldout"),
    "test": "test",
}


def split_of(problem: str, *, heldout_share: float, test_share: float) -> Split:
    """`u = sha256(problem) / 2^256`: test below `test_share`, then heldout for `heldout_share` more, else train."""
    u = int.from_bytes(hashlib.sha256(problem.encode()).digest()[:8], "big") / 2**64
    if u < test_share:
        return "test"
    return "heldout" if u < test_share + heldout_share else "train"


def meaning(wanted: Mapping[Split, str], names: list[str]) -> dict[str, Split]:
    """Our split of each of the source's names, those without one left out; `wanted` comes before the usual names."""
    own = {name: split for split, name in wanted.items()} or {
        name: SPLIT_NAMES[name.lower()] for name in names if name.lower() in SPLIT_NAMES
    }
    return {name: own[name] for name in names if name in own}


def need_two(count: int, split: str, table: Path) -> None:
    """Refuse prompts of which too few are in the split that policies are measured on: an interval needs two."""
    if count < 2:
        share = f"raise {split}_share of each table of its entry, " if split != "train" else ""
        what = f"{count} prompt{'s are' if count != 1 else ' is'} in the split '{split}', and evaluate needs at least 2"
        fix = f"Give more rows, {share}or write the split of each row into a column `split` (docs/data.md)"
        raise DataError(what=what, where=str(table), fix=fix)


def divided(frame: pl.DataFrame, kind: Kind, *, heldout_share: float, test_share: float) -> pl.Series:
    """The split of every row of a frame, by the hash of its problem (in a corpus: of its text)."""
    keys = content_ids(frame, ["text"]) if kind == "corpus" else frame["problem"]
    shares = {"heldout_share": heldout_share, "test_share": test_share}
    return pl.Series("split", [split_of(key, **shares) for key in keys], dtype=pl.String())
