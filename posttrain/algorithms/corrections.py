"""Corrections for a sampler whose log-probs differ from the trainer's: the weight of each token's policy term.

w = pi_old / mu     pi_old: recomputed by the trainer, mu: recorded by the sampler; both for the sampling weights

A weight has no gradient. A token with weight 0 still counts in every denominator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field
from torch import Tensor

from posttrain.formulas.policy import inside, product_log_ratio, sequence_log_ratio, token_log_ratio
from posttrain.formulas.ragged import Ragged
from posttrain.settings.choices import OneOf, Options

LEVELS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "token": token_log_ratio,
    "sequence": product_log_ratio,
    "geometric": sequence_log_ratio,
}
"""The level of a ratio: a token; or a sequence, as the product or geometric mean of its tokens' ratios."""


class CorrectionOptions(Options):
    """The ratio, and its bounds for truncation."""

    level: Literal["token", "sequence", "geometric"] = Field(
        "token",
        description="a ratio per token, or per sequence: the product or the geometric mean of its tokens' ratios",
    )
    low: float | None = Field(None, gt=0, le=1, description="lower bound of w; null: none")
    high: float = Field(2.0, ge=1, description="upper bound of w")


class BandOptions(CorrectionOptions):
    """The ratio, and the band outside which tokens are not trained."""

    low: float | None = Field(0.5, gt=0, le=1, description="lower bound of w; null: none")
    high: float = Field(5.0, ge=1, description="upper bound of w")


@dataclass(frozen=True)
class Correction:
    """A way to turn ratios into weights."""

    options: type[Options]
    formula: str
    weight: Callable[[Tensor, Any], Tensor] = lambda ratio, options: ratio  # noqa: ARG005
    """(ratios, options) -> weights, both [N]."""


CORRECTION: OneOf[Correction] = OneOf(
    {
        "none": Correction(Options, "no correction: ratios are taken to the sampler's log-probs"),
        "truncate": Correction(CorrectionOptions, "clip(w, low, high)", lambda ratio, o: ratio.clamp(o.low, o.high)),
        "mask": Correction(
            BandOptions, "w where low <= w <= high, else 0", lambda ratio, o: ratio * inside(ratio, o.low, o.high)
        ),
        "reject": Correction(
            BandOptions,
            "1 where low <= w <= high, else 0",
            lambda ratio, o: inside(ratio, o.low, o.high).to(ratio.dtype),
        ),
    },
    "none",
)


def correction_weights(step: Ragged, options: Options) -> Tensor:
    """Return the weight of each token [N] of a step with `recomputed_logp` and `old_logp`."""
    assert isinstance(options, CorrectionOptions)
    log_ratio = LEVELS[options.level](step.tokens["recomputed_logp"], step.tokens["old_logp"], step.lengths_B)
    return CORRECTION.entry(options.type).weight(log_ratio.exp(), options)
