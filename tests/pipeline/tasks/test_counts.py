"""The row counts of a generator."""

from __future__ import annotations

from posttrain.pipeline.toy_tasks.counts import Counts


def test_sizes_of_tables_and_splits() -> None:
    assert Counts(demonstrations=7, test_prompts=3).sizes() == {
        "chat": {"train": 7, "heldout": 40}, "prompts": {"train": 800, "heldout": 100, "test": 3},
    }  # fmt: skip
