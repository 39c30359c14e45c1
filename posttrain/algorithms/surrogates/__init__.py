"""The table of surrogates: each file here holds some, with their options and the rows that are about them."""

from __future__ import annotations

from posttrain.algorithms.objective import Row
from posttrain.algorithms.surrogates import base, covariance, dppo, gmpo, gspo_token, sapo
from posttrain.algorithms.surrogates.base import Options, Surrogate, Tokens

__all__ = ["RENAMED", "ROWS", "SURROGATES", "Options", "Surrogate", "Tokens"]

_IDEAS = (sapo, gmpo, dppo, gspo_token, covariance)

SURROGATES: dict[str, Surrogate] = {
    **base.SURROGATES,
    **{name: one for idea in _IDEAS for name, one in idea.SURROGATES.items()},
}
ROWS: tuple[Row, ...] = tuple(row for idea in _IDEAS for row in idea.ROWS)
"""Rows of policy objectives that are about one surrogate."""
RENAMED = {"pessimistic": "ppo_clip", "weight": "cispo", "score": "reinforce", "unclipped": "importance"}
"""Names of earlier versions."""
