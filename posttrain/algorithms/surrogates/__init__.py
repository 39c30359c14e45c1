"""The table of surrogates: each file here holds some, with their options and the rows that are about them."""

from __future__ import annotations

from posttrain.algorithms.surrogates import clipped
from posttrain.algorithms.surrogates.base import Options, Surrogate, Tokens

__all__ = ["RENAMED", "SURROGATES", "Options", "Surrogate", "Tokens"]

SURROGATES: dict[str, Surrogate] = {**clipped.SURROGATES}
RENAMED = {"pessimistic": "ppo_clip", "weight": "cispo", "score": "reinforce", "unclipped": "importance"}
"""Names of earlier versions."""
