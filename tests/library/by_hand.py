"""Small columns for tests that compare a formula with numbers computed by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from posttrain.algorithms.advantages import ADVANTAGES, Rewards
from posttrain.algorithms.surrogate import Tokens
from posttrain.formulas.ragged import Ragged

QUARTER = math.log(3)
"""sigmoid(QUARTER) = 3 / 4."""


def t(*numbers: float) -> Tensor:
    """Return a column in double precision."""
    return torch.tensor(numbers, dtype=torch.float64)


def tokens(ratio: Tensor, advantage: Tensor, *lengths: int, logp: Tensor | None = None, **columns: Tensor) -> Tokens:
    """Return the inputs of a surrogate with these ratios; the rows' lengths default to one row."""
    logp = torch.full_like(ratio, -1.0) if logp is None else logp
    rows = torch.tensor(lengths or (ratio.numel(),))
    others: Mapping[str, Tensor] = columns
    return Tokens(logp, logp - ratio.log(), ratio.log(), ratio, advantage, rows, others)


def rewards(reward_B: Tensor, *lengths: int, rows: Mapping[str, Tensor], **more: Tensor) -> Rewards:
    """Return the inputs of an advantage: rows of one token, or of `lengths`, and no KL penalty."""
    lengths_B = torch.tensor(lengths or [1] * len(reward_B))
    step = Ragged(lengths_B, rows, more)
    return Rewards(step, reward_B, torch.zeros(int(lengths_B.sum()), dtype=torch.float64), 0 * reward_B, {})


def advantage_of(name: str, given: Rewards, **options: float) -> Tensor:
    """Return the advantage of each token by the table's entry."""
    entry = ADVANTAGES[name]
    return entry.columns(given, entry.options(type=name, **options))["advantage"]
