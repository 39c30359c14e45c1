"""A preference loss over a pair's two answers, or over single answers with labels.

`h` is for the chosen answer, `l` for the rejected one, `r` for a single one: logp - ref_logp with a reference, else
logp. A setting chooses sums or means over tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field
from torch import Tensor

from posttrain.settings.choices import Options
from posttrain.settings.listing import Listing, instance

Match = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class PairLoss:
    """A loss per pair: (h, l, options) -> [pairs], from the chosen and the rejected answer.

    Example: `PairLoss(BetaOptions, lambda h, l, options: -logsigmoid(options.beta * (h - l)), "-logsigmoid(...)")`
    """

    options: type[Options]
    loss: Callable[[Tensor, Tensor, Any], Tensor]
    formula: str
    balanced: bool = True
    """True if the gradients of two equal answers cancel."""
    match: Match | None = None
    """The comparison, if it is not between the two answers of a pair: (h, l, the reference's margin) of the whole step
    at its start -> the value to compare with each chosen and each rejected answer, [pairs] each."""


@dataclass(frozen=True)
class UnaryLoss:
    """A loss per labelled answer: (r, label, shift, options) -> [answers]. `shift`: how the shift is estimated.

    Example: `UnaryLoss(BetaOptions, lambda r, label, s, k: -logsigmoid(k.beta * label * (r - s)), "...", "running")`
    """

    options: type[Options]
    loss: Callable[[Tensor, Tensor, Tensor, Any], Tensor]
    formula: str
    shift: Literal["mismatched", "running"]


class BetaOptions(Options):
    """The temperature of the implicit reward."""

    beta: float = Field(0.1, gt=0, description="inverse temperature of the implicit reward")


class UnpairedOptions(BetaOptions):
    """Weights of the two labels."""

    desirable: float = Field(1.0, ge=0, description="weight of desirable answers")
    undesirable: float = Field(1.0, ge=0, description="weight of undesirable answers")


def signed(gain: Tensor, label: Tensor) -> Tensor:
    """Return the gain of a desirable answer, or the loss of an undesirable answer."""
    return gain.where(label > 0, -gain)


def label_weight(like: Tensor, label: Tensor, desirable: float, undesirable: float) -> Tensor:
    """Return the weight of each answer's label."""
    return like.new_full((), desirable).where(label > 0, like.new_full((), undesirable))


LOSSES: Listing[PairLoss | UnaryLoss] = Listing(
    "posttrain.algorithms.preference", "LOSSES", group="algorithms.losses", adopt=instance(PairLoss, UnaryLoss)
)
"""Name -> PairLoss or UnaryLoss."""
