"""The surrogate of a policy objective: the term of each token that it maximises; and the common ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field, field_validator
from torch import Tensor

from posttrain.formulas.policy import (
    cispo,
    importance,
    outside,
    outside_either_edge,
    ppo_clip,
    reinforce,
    sequence_log_ratio,
    token_log_ratio,
)
from posttrain.formulas.ragged import Ragged
from posttrain.params.choices import Options

__all__ = ["Options", "Surrogate", "Tokens"]


@dataclass(frozen=True)
class Tokens:
    """The inputs of a surrogate: flat columns [N] of some tokens, whole rows of them where it needs sequences."""

    logp: Tensor
    """[N] under the trained policy, with gradient."""
    old_logp: Tensor
    """[N] under the sampling policy."""
    log_ratio: Tensor
    """[N] logp - old_logp by the surrogate's own `log_ratio`, bounded at 20 in size."""
    ratio: Tensor
    """[N] exp(log_ratio)."""
    advantage: Tensor
    """[N] without gradient."""
    lengths: Tensor
    """[B] tokens of each row; of use only to a surrogate that needs sequences."""
    columns: Mapping[str, Tensor]
    """[N] all other token columns, those of `prepare` included."""


@dataclass(frozen=True)
class Surrogate:
    """One way to turn ratio and advantage into a term per token.

    Example: `Surrogate(Options, lambda tokens, options: tokens.ratio * tokens.advantage, "r A")`
    """

    options: type[Options]
    term: Callable[[Tokens, Any], Tensor]
    """(tokens, options) -> [N], maximised. Where ratio is 1 its gradient by logp must be the advantage."""
    formula: str
    clipped: Callable[[Tokens, Any], Tensor] | None = None
    """Which tokens have lost their gradient, for the metric `clip_fraction`."""
    log_ratio: Callable[[Tensor, Tensor, Tensor], Tensor] = token_log_ratio
    """(logp, old_logp, lengths) -> [N]."""
    has_ratio: bool = True
    """Whether it corrects for the sampling policy; else samples are used for one update and never replayed."""
    needs_sequence: bool = False
    """Whether a token's term depends on other tokens of its row; else the loss is computed tile by tile."""
    per_sequence: bool = False
    """Whether the term is one number per row, which needs one advantage per row and the mean over its tokens."""
    needs: frozenset[str] = field(default_factory=frozenset)
    """Columns beyond log-probs and advantages (objective.py)."""
    prepare: Callable[[Ragged, Any], dict[str, Tensor]] | None = None
    """(step, options) -> token columns that depend on the whole step; `dropped` marks tokens whose term is 0."""
    of_sampler: bool = False
    """Whether its old policy is the sampler by definition, so that a sampler of its own needs no correction."""
    charge: str | None = None
    """The option that is the coefficient of a penalty for moving away from the sampling policy, if there is one."""


class UpperEdge(Options):
    """An upper edge of the ratio."""

    high: float = Field(0.2, description="upper edge of the ratio: 1 + high")

    @field_validator("high")
    @classmethod
    def _counted_from_1(cls, high: float) -> float:
        if high <= 0:
            raise ValueError(
                f"high = {high:g} puts the edge 1 + high at {1 + high:g}, so samples of the policy itself (ratio 1) "
                "would be cut. Use a number above 0: it is counted from 1"
            )
        return high


class ClipOptions(UpperEdge):
    """Both edges: with only one the ratio could fall without bound where A < 0."""

    low: float = Field(0.2, gt=0, le=1, description="lower edge of the ratio: 1 - low")


class CispoOptions(UpperEdge):
    """The edges of a weight."""

    low: float | None = Field(None, gt=0, le=1, description="lower edge of the weight: 1 - low; null leaves it open")
    high: float = Field(4.0, description="upper edge of the weight: 1 + high")


class GspoOptions(ClipOptions):
    """Edges of the ratio of a whole sequence, which stays close to 1."""

    low: float = Field(3e-4, gt=0, le=1, description="lower edge of the sequence's ratio: 1 - low")
    high: float = Field(4e-4, description="upper edge of the sequence's ratio: 1 + high")


SURROGATES = {
    "ppo_clip": Surrogate(
        ClipOptions,
        lambda tokens, o: ppo_clip(tokens.ratio, tokens.advantage, o.low, o.high),
        "min(r A, clip(r, 1 - low, 1 + high) A)",
        clipped=lambda tokens, o: outside(tokens.ratio, tokens.advantage, o.low, o.high),
    ),
    "importance": Surrogate(Options, lambda tokens, _: importance(tokens.ratio, tokens.advantage), "r A"),
    "cispo": Surrogate(
        CispoOptions,
        lambda tokens, o: cispo(tokens.ratio, tokens.logp, tokens.advantage, o.low, o.high),
        "sg(clip(r, 1 - low, 1 + high)) A logp",
        clipped=lambda tokens, o: outside_either_edge(tokens.ratio, o.low, o.high),
    ),
    "reinforce": Surrogate(
        Options, lambda tokens, _: reinforce(tokens.logp, tokens.advantage), "A logp", has_ratio=False
    ),
    "gspo": Surrogate(
        GspoOptions,
        lambda tokens, o: ppo_clip(tokens.ratio, tokens.advantage, o.low, o.high),
        "min(s A, clip(s, 1 - low, 1 + high) A), s = exp(mean_t log r)",
        clipped=lambda tokens, o: outside(tokens.ratio, tokens.advantage, o.low, o.high),
        log_ratio=sequence_log_ratio,
        needs_sequence=True,
        per_sequence=True,
    ),
}
