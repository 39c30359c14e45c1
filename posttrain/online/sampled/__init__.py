"""Algorithms that train on selected samples of the policy, with an objective of another kind."""

from __future__ import annotations

from posttrain.algorithms.objective import AlgorithmRow, named
from posttrain.settings.listing import Listing

SAMPLED_ROWS: Listing[AlgorithmRow] = Listing("posttrain.online.sampled", "ROWS", named)
