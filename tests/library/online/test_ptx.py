"""Pretraining text next to the policy's own samples."""

from __future__ import annotations

from posttrain.online.ptx import PtxSource
from posttrain.rollout import TokenRow
from posttrain.train.batch_sources import EpochSource, Example


def test_text_follows_the_samples() -> None:
    samples = EpochSource([Example([TokenRow([1], [2])], {"reward": [5.0]})], 1, 1, 0)
    text = [Example([TokenRow([], [7, 8, 9])])]
    batch = PtxSource(samples, text, 1, 0).batch(0)
    assert [list(row.rest) for row in batch.rows] == [[2], [7, 8, 9]]
    assert batch.columns.rows["pretrain"].tolist() == [False, True] and batch.columns.rows["reward"].tolist() == [5, 0]
