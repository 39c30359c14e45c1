"""Measurements on held-out rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from posttrain.measure.phases import phase
from posttrain.models.forward import score_rows
from posttrain.text.packing import pack
from posttrain.train.batch_sources import Example, collate
from posttrain.train.model_set import ModelSet


@torch.no_grad()
def mean_loss(models: ModelSet, examples: Sequence[Example]) -> float:
    """Mean negative log-likelihood per token."""
    batch = models.add_scored_columns(collate(examples), frozenset({"step_start_logp"}))
    return -float(batch.columns.tokens["step_start_logp"].double().mean())


@phase("score")
@torch.no_grad()
def answer_scores(models: ModelSet, examples: Sequence[Example]) -> Tensor:
    """The scalar head's score of every answer."""
    device = models.runtime.device
    parts = [score_rows(models.policy, pack(one.rows).to(device)) for one in models.micro_batches(collate(examples))]
    return torch.cat(parts).double().cpu()
