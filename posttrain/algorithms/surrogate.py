"""The surrogate of a policy objective: the term per token that it maximises."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from posttrain.formulas.policy import token_log_ratio
from posttrain.formulas.ragged import Ragged
from posttrain.settings.choices import Options
from posttrain.settings.listing import Listing, instance


@dataclass(frozen=True)
class Tokens:
    """The inputs of a surrogate: flat columns [N] of some tokens; whole rows if it needs sequences."""

    logp: Tensor
    """[N] log-probs under the trained policy, with gradient."""
    old_logp: Tensor
    """[N] log-probs under the sampling policy."""
    log_ratio: Tensor
    """[N] logp - old_logp by the surrogate's own `log_ratio`, limited to 20 in absolute value."""
    ratio: Tensor
    """[N] exp(log_ratio)."""
    advantage: Tensor
    """[N] without gradient."""
    lengths: Tensor
    """[B] tokens of each row, for surrogates that need sequences."""
    columns: Mapping[str, Tensor]
    """[N] all other token columns, including those of `prepare`.

    `prepare` also gets `sampling_logp`: the sampling policy's log-probs, or the trainer's if `correction` is set.
    """


@dataclass(frozen=True)
class Surrogate:
    """A way to turn ratio and advantage into a term per token.

    Example: `Surrogate(Options, lambda tokens, options: tokens.ratio * tokens.advantage, "r A")`
    """

    options: type[Options]
    term: Callable[[Tokens, Any], Tensor]
    """(tokens, options) -> [N], maximised. At ratio 1, its gradient with respect to logp must be the advantage."""
    formula: str
    clipped: Callable[[Tokens, Any], Tensor] | None = None
    """The tokens that have lost their gradient, for the metric `clip_fraction`."""
    log_ratio: Callable[[Tensor, Tensor, Tensor], Tensor] = token_log_ratio
    """(logp, old_logp, lengths) -> [N]."""
    has_ratio: bool = True
    """True if it corrects for the sampling policy. If not, samples are used for one update and never replayed."""
    needs_sequence: bool = False
    """True if a token's term depends on other tokens of its row. If not, the loss is computed tile by tile."""
    per_sequence: bool = False
    """True if the term is one number per row, which needs one advantage per row and this aggregation."""
    aggregation: str = "sequence_mean"
    needs: frozenset[str] = field(default_factory=frozenset)
    """Columns besides log-probs and advantages (objective.py)."""
    prepare: Callable[[Ragged, Any], dict[str, Tensor]] | None = None
    """(step, options) -> token columns that depend on the whole step. `dropped` marks tokens with term 0."""
    of_sampler: bool = False
    """True if its old policy is the sampler by definition, so that another sampler needs no correction."""
    charge: str | None = None
    """The option with the coefficient of a penalty for moving away from the sampling policy, if there is one."""


SURROGATES: Listing[Surrogate] = Listing(
    "posttrain.algorithms.policy", "SURROGATES", group="algorithms.surrogates", adopt=instance(Surrogate)
)
