"""Pretraining text in addition to the policy's samples (PPO-ptx)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from pydantic import Field

from posttrain.settings.params import Params
from posttrain.train.batch_sources import BatchSource, EpochSource, Example, WrappedSource
from posttrain.train.step import Batch, concatenate, make_batch


class TextParams(Params):
    """Pretraining text in addition to the samples (PPO-ptx)."""

    rows: int = Field(8, ge=1, description="text windows per optimizer step")
    window: int = Field(64, ge=2, description="tokens per window")


class PtxSource(WrappedSource):
    """Samples plus rows of pretraining text (PPO-ptx).

    Text rows have 1 in the column `pretrain` and 0 in the others.
    """

    def __init__(self, inner: BatchSource, windows: Sequence[Example], rows: int, seed: int) -> None:
        super().__init__(inner)
        self._text = EpochSource(windows, rows, 1, seed)

    def batch(self, step: int) -> Batch:
        """Return the samples of one step, followed by its text."""
        samples, text = self._inner.batch(step), self._text.batch(step)
        tokens = int(text.columns.lengths_B.sum())
        empty = make_batch(
            text.rows,
            {name: column.new_zeros(len(text), *column.shape[1:]) for name, column in samples.columns.rows.items()},
            {name: torch.zeros(tokens, dtype=column.dtype) for name, column in samples.columns.tokens.items()},
        )
        return concatenate([_with_pretrain(samples, text=False), _with_pretrain(empty, text=True)])


def _with_pretrain(batch: Batch, *, text: bool) -> Batch:
    columns = batch.columns.with_rows(pretrain=torch.full((len(batch),), text))
    return batch.with_columns(replace(columns, item_B=None))
