"""Measurements on held-out rows."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
import torch
from pydantic import Field
from torch import Tensor

from posttrain.measure.phases import phase
from posttrain.models.forward.forward import score_rows
from posttrain.settings.params import Params
from posttrain.text.packing import pack
from posttrain.train.batch_sources import Example, collate
from posttrain.train.model_set import ModelSet


class HeldoutRows(Params):
    """The number of held-out rows to evaluate."""

    heldout_rows: int = Field(
        1000,
        ge=1,
        description="maximum number of held-out rows; if there are more, always the same rows, chosen by id",
    )


def rows_of(frame: pl.DataFrame, split: str, params: HeldoutRows) -> pl.DataFrame:
    """Return the rows of a split. The split heldout is limited to `heldout_rows`."""
    rows = frame.filter(split=split)
    if split != "heldout" or rows.height <= params.heldout_rows:
        return rows
    print(f"measured on {params.heldout_rows:,} of {rows.height:,} held-out rows (heldout_rows)")
    return first_by_id(rows, params.heldout_rows)


def first_by_id(rows: pl.DataFrame, most: int) -> pl.DataFrame:
    """Return at most `most` rows with the smallest ids, which are hashes, in their original order."""
    return rows.filter(pl.col("id").rank("ordinal") <= most)


@torch.no_grad()
def mean_loss(models: ModelSet, examples: Sequence[Example]) -> float:
    """Return the mean negative log-likelihood per token."""
    batch = models.add_scored_columns(collate(examples), frozenset({"step_start_logp"}))
    return -float(batch.columns.tokens["step_start_logp"].double().mean())


@phase("reference")
@torch.no_grad()
def answer_scores(models: ModelSet, examples: Sequence[Example]) -> Tensor:
    """Return the scalar head's score of every answer."""
    device = models.runtime.device
    parts = [
        score_rows(models.policy, pack(batch.rows).to(device)) for batch in models.micro_batches(collate(examples))
    ]
    return torch.cat(parts).double().cpu()
