"""The table of surrogates; a run imports only the file of its own."""

from __future__ import annotations

from posttrain.algorithms.surrogates.base import Options, Surrogate, Tokens
from posttrain.params.lazy_table import LazyTable

__all__ = ["SURROGATES", "Options", "Surrogate", "Tokens"]

SURROGATES: LazyTable[Surrogate] = LazyTable(
    "SURROGATES",
    {
        "ppo_clip": "posttrain.algorithms.surrogates.base",
        "importance": "posttrain.algorithms.surrogates.base",
        "cispo": "posttrain.algorithms.surrogates.base",
        "reinforce": "posttrain.algorithms.surrogates.base",
        "gspo": "posttrain.algorithms.surrogates.base",
        "sapo": "posttrain.algorithms.surrogates.sapo",
        "gmpo": "posttrain.algorithms.surrogates.gmpo",
        "dppo_tv": "posttrain.algorithms.surrogates.dppo",
        "dppo_kl": "posttrain.algorithms.surrogates.dppo",
        "gspo_token": "posttrain.algorithms.surrogates.gspo_token",
        "clip_cov": "posttrain.algorithms.surrogates.covariance",
        "kl_cov": "posttrain.algorithms.surrogates.covariance",
    },
)
"""Name -> the module whose own SURROGATES has it."""
