"""The contract of every algorithm: prepare a whole optimizer step, then sum weighted item losses over micro-batches.

    prepare(step, state) -> columns and weights     no gradient, may look across rows
    loss(micro)          -> sum of weight * item    with gradient, adds up over micro-batches

The columns that an objective needs beyond its own rows are named in `needs`, and whoever trains supplies them:

    logp            [N] grad  log-prob of each completion token under the trained policy (always there)
    entropy         [N] grad  entropy of the policy at each token
    value           [N] grad  the critic's value of the state before each token; `old_value` when the data was made
    score           [B] grad  the scalar head's score of each row
    step_score      [N] grad  the scalar head's score at each token (process reward)
    kl_old          [N] grad  KL(sampling policy || policy) over the vocabulary at each token
    teacher_kl      [N] grad  divergence from a teacher over the vocabulary at each token
    old_logp        [N]       under the policy that sampled, recorded while decoding
    recomputed_logp [N]       the same policy's log-probs by the trainer's own numbers, where the sampler's differ
    ref_logp        [N]       under the frozen reference
    anchor          [N]       under the policy as it stands at the start of the optimizer step
    step_label      [N]       label in [0, 1] of a reasoning step at its last token, -1 at all other tokens
    reward          [B]       the outcome reward of each row
    reward_parts    [B, K]    the parts of the reward, unweighted: the objective knows the weights
    group           [B]       which prompt the row answers
    sample_key      [B]       int64 that belongs to the prompt and the sample, for draws and ties that no order changes
    opponent        [B]       whether the row only stands for others to be compared with, and is not learned from
    truncated       [B]       whether the row ended without a stop token
    age             [B]       optimizer steps taken since the row was sampled
    pretrain        [B]       whether the row is pretraining text (PPO-ptx); its other columns may hold anything finite
    side            [B]       +1 chosen, -1 rejected (the two rows of a pair are one item)
    rank            [B]       place of the answer among its prompt's, 0 the best (the answers of a prompt are one item)
    margin          [B]       by how much the row's score must win where it wins (two rows of a pair: the chosen one's)
    label           [B]       +1 desirable, -1 undesirable, 0 a mismatched row that only estimates KL
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from torch import Tensor

from posttrain.choices import lay
from posttrain.formulas.ragged import Ragged
from posttrain.params import Params

State = dict[str, float]
"""What an objective carries from one optimizer step to the next; the checkpoint keeps it."""

GRADIENT_COLUMNS = frozenset({"logp", "entropy", "value", "score", "step_score", "kl_old", "teacher_kl"})
"""Columns that each micro-batch's forward pass makes; all others are made before `prepare`."""


ROW_COLUMNS = frozenset(
    {
        "score", "reward", "reward_parts", "group", "sample_key", "opponent", "truncated", "age", "pretrain", "side",
        "rank", "margin", "label",
    }
)  # fmt: skip
"""Columns with one value per row; all others have one per token."""

TOKEN_COLUMNS = frozenset({"old_logp", "recomputed_logp", "ref_logp", "anchor", "old_value", "step_label"}) | (
    GRADIENT_COLUMNS - ROW_COLUMNS
)


@dataclass(frozen=True)
class Prepared:
    """A step ready for its losses, the state for the next one, and what was seen on the way."""

    step: Ragged
    state: State
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Loss:
    """A micro-batch's share of the step's loss and of its metrics; shares add up over micro-batches."""

    total: Tensor
    metrics: Mapping[str, Tensor] = field(default_factory=dict)


class Objective(Protocol):
    """What the training loop knows of an algorithm."""

    @property
    def needs(self) -> frozenset[str]: ...

    @property
    def by_token(self) -> bool:
        """Whether the loss is a sum over tokens of their own columns, `logp` and `entropy` alone with gradient."""
        return False

    def initial_state(self) -> State:
        """The state before the first step."""
        return {}

    def prepare(self, step: Ragged, state: State) -> Prepared: ...

    def loss(self, micro: Ragged) -> Loss: ...


def supplied(needs: frozenset[str]) -> frozenset[str]:
    """The columns that have to be there before `prepare`: no gradient columns, but the critic's old value."""
    return (needs - GRADIENT_COLUMNS) | ({"old_value"} if "value" in needs else set())


def require(step: Ragged, columns: frozenset[str] | set[str], name: str) -> None:
    """Fail early, by name, when a column that an objective needs was not supplied."""
    missing = sorted(columns - set(step.rows) - set(step.tokens))
    if missing:
        raise KeyError(f"objective '{name}' needs the columns {missing}; there are {[*step.rows, *step.tokens]}")


def with_gradient(step: Ragged, columns: Mapping[str, Tensor]) -> Ragged:
    """The prepared step with its gradient columns, which hold every row and token that `row` and `token` number."""
    row, token = step.rows["row"], step.tokens["token"]
    step = step.with_rows(**{name: column[row] for name, column in columns.items() if name in ROW_COLUMNS})
    return step.with_tokens(**{name: column[token] for name, column in columns.items() if name in TOKEN_COLUMNS})


@dataclass(frozen=True)
class Row:
    """One algorithm; the table that it stands in binds it to the model that types its settings."""

    name: str
    paper: str
    formula: str
    values: Mapping[str, Any]
    model: type[Params] = Params

    def laid(self, over: Mapping[str, Any]) -> dict[str, Any]:
        """The row's settings as plain data with some replaced, before they are typed."""
        return lay(self.model, self.values, over)

    def settings(self, **over: Any) -> Any:
        """The row's settings with some replaced."""
        return self.model.model_validate(self.laid(over))


def table(model: type[Params], rows: Iterable[Row]) -> dict[str, Row]:
    """Rows by name, bound to the model of their settings."""
    return {row.name: replace(row, model=model) for row in rows}


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted path, value) of each leaf."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
