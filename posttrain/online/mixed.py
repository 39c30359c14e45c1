"""Sources that add given data to what the policy samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from posttrain.train.batch import Batch, Source, WrappedSource, joined, make_batch
from posttrain.train.epochs import EpochSource, Example


class PtxSource(WrappedSource):
    """Samples, and rows of pretraining text beside them (PPO-ptx): marked in the column `pretrain`, other columns 0."""

    def __init__(self, inner: Source, windows: Sequence[Example], rows: int, seed: int) -> None:
        super().__init__(inner)
        self._text = EpochSource(windows, rows, 1, seed)

    def batch(self, step: int) -> Batch:
        """The samples of one step, then its text."""
        samples, text = self._inner.batch(step), self._text.batch(step)
        tokens = int(text.columns.lengths_B.sum())
        empty = make_batch(
            text.rows,
            {name: one.new_zeros(len(text), *one.shape[1:]) for name, one in samples.columns.rows.items()},
            {name: torch.zeros(tokens, dtype=one.dtype) for name, one in samples.columns.tokens.items()},
        )
        return joined([_marked(samples, text=False), _marked(empty, text=True)])


class MixedSource(WrappedSource):
    """Steps on own samples and steps on given answers, the share of each as asked (GKD, Agarwal 2023)."""

    def __init__(self, own: Source, given: EpochSource, share: float, seed: int) -> None:
        super().__init__(own)
        self._given, self._share, self._seed = given, share, seed

    def batch(self, step: int) -> Batch:
        """The rows of one step, all of one kind; which kind follows from the seed and the step."""
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + step)
        own = float(torch.rand((), generator=generator)) < self._share
        return (self._inner if own else self._given).batch(step)


def _marked(batch: Batch, *, text: bool) -> Batch:
    marked = batch.columns.with_rows(pretrain=torch.full((len(batch),), text))
    return batch.with_columns(replace(marked, item_B=None))
