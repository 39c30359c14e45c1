"""Decide the split of a row: by its source, or by a hash of its problem, so that it is the same in every table."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import polars as pl

from posttrain.data.columns import Kind, Split, content_ids
from posttrain.errors import DataError

SPLIT_NAMES: Final[dict[str, Split]] = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("heldout", "validation", "valid", "val", "dev", "eval"), "heldout"),
    "test": "test",
}


def split_of(problem: str, *, heldout_share: float, test_share: float) -> Split:
    """Return test if u = sha256(problem) / 2^256 < `test_share`, heldout for the next `heldout_share`, else train."""
    u = int.from_bytes(hashlib.sha256(problem.encode()).digest()[:8], "big") / 2**64
    if u < test_share:
        return "test"
    return "heldout" if u < test_share + heldout_share else "train"


def split_names(wanted: Mapping[Split, str], names: list[str]) -> dict[str, Split]:
    """Return posttrain's split for each split name of the source.

    `wanted` replaces common names; unknown names are left out.
    """
    split_of = {name: split for split, name in wanted.items()} or {
        name: SPLIT_NAMES[name.lower()] for name in names if name.lower() in SPLIT_NAMES
    }
    return {name: split_of[name] for name in names if name in split_of}


def training_prompts(prompts: pl.DataFrame, table: Path) -> pl.DataFrame:
    """Return the prompts to train on. Reject a table that has only test prompts."""
    rows = prompts.filter(split="train")
    if rows.is_empty():
        what = f"it has no training prompts, only {', '.join(sorted(set(prompts['split'])))}"
        raise DataError(what=what, where=str(table), fix="Add a file with training prompts (docs/data.md)")
    return rows


def check_enough_prompts(count: int, split: str, table: Path, *, of: int | None = None) -> None:
    """Reject an evaluation split with fewer than two prompts, because an interval needs two.

    `of`: the prompts of the split, if the rewards judge only `count` of them.
    """
    if count < 2 <= (of or 0):
        what = f"the rewards can judge {count} of {of} prompts of the split '{split}', and evaluate needs at least 2"
        fix = "Use a reward that judges these prompts, or give them the answers that it reads (docs/rewards.md)"
        raise DataError(what=what, where=str(table), fix=fix)
    if count < 2:
        share = f"raise {split}_share of each table of its run, " if split != "train" else ""
        what = f"the split '{split}' has {count} prompt{'s' * (count != 1)}, and evaluate needs at least 2"
        fix = f"Give more rows, {share}or give each row's split in a column `split` (docs/data.md)"
        raise DataError(what=what, where=str(table), fix=fix)


def splits_by_hash(frame: pl.DataFrame, kind: Kind, *, heldout_share: float, test_share: float) -> pl.Series:
    """Return the split of every row by the hash of its problem (in a corpus, of its text)."""
    keys = content_ids(frame, ["text"]) if kind == "corpus" else frame["problem"]
    shares = {"heldout_share": heldout_share, "test_share": test_share}
    return pl.Series("split", [split_of(key, **shares) for key in keys], dtype=pl.String())
