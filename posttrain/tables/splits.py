"""Which split a problem belongs to: a hash of its key, so that every table and every run agrees."""

from __future__ import annotations

import hashlib

from posttrain.tables.columns import Split


def split_of(problem: str, *, heldout_share: float, test_share: float) -> Split:
    """`u = sha256(problem) / 2^256`: test below `test_share`, then heldout for `heldout_share` more, else train."""
    u = int.from_bytes(hashlib.sha256(problem.encode()).digest()[:8], "big") / 2**64
    if u < test_share:
        return "test"
    return "heldout" if u < test_share + heldout_share else "train"
