"""A divergence of a student from a teacher, over the vocabulary at each token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from posttrain.settings.choices import Options
from posttrain.settings.listing import Listing


@dataclass(frozen=True)
class Divergence:
    """A divergence: (student logits, teacher logits, temperature, options) -> [N]."""

    options: type[Options]
    measure: Callable[[Tensor, Tensor, float, Any], Tensor]
    formula: str


DIVERGENCES: Listing[Divergence] = Listing("posttrain.algorithms.distill", "DIVERGENCES")
