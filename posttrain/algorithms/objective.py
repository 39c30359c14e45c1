"""The interface of every algorithm: prepare a whole optimizer step, then sum weighted losses over micro-batches.

prepare(step, state) -> columns, weights, state no gradient, may compare rows of the whole step
loss(micro, state)   -> sum of weight * loss    with gradient, adds up over micro-batches; the state of `prepare`

An objective lists the columns that it needs in `needs`, and the training loop adds them to the batch:

    logp            [N] grad  log-prob of each completion token under the trained policy (always there)
    entropy         [N] grad  entropy of the policy at each token
    value           [N] grad  the critic's value of the state before each token; `old_value` when the data was made
    score           [B] grad  the scalar head's score of each row
    kl_old          [N] grad  KL(sampling policy || policy) over the vocabulary at each token
    teacher_kl      [N] grad  divergence from a teacher over the vocabulary at each token
    old_logp        [N]       under the sampling policy, recorded while decoding
    recomputed_logp [N]       under the sampling policy, computed by the trainer where the sampler's numbers differ
    ref_logp        [N]       under the frozen reference
    step_start_logp [N]       under the policy at the start of the optimizer step
    step_start_entropy [N]    of the policy at the start of the optimizer step
    reward          [B]       the outcome reward of each row
    part.NAME       [B]       the score of the reward NAME (needed as `reward_parts`)
    weight.NAME     [B]       its weight in the sum
    group           [B]       the number of the row's prompt
    sample_key      [B]       int64 key of the prompt and sample, for random numbers and ties that no order changes
    opponent        [B]       whether the row is only compared with, not trained on
    truncated       [B]       whether the row ended without a stop token
    age             [B]       optimizer steps since the row was sampled
    fresh           [B]       whether no earlier optimizer step has trained on the row
    pretrain        [B]       whether the row is pretraining text (PPO-ptx); its other columns hold any finite value
    side            [B]       +1 chosen, -1 rejected (the two rows of a pair are one item)
    rank            [B]       rank among the prompt's answers, 0 the best (the answers of a prompt are one item)
    margin          [B]       by how much the row's score must be higher where it wins
    label           [B]       +1 desirable, -1 undesirable, 0 a mismatched row that only estimates KL
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from posttrain.formulas.ragged import Ragged
from posttrain.settings.choices import Options, merge_settings
from posttrain.settings.params import Params

REWARD_PARTS = "reward_parts"
"""The need of an objective that reads rewards one by one. Their columns have the rewards' names."""

State = dict[str, float]
"""The state of an objective between optimizer steps (adaptive coefficients, baselines). Checkpoints store it."""


class Moving(Options):
    """Options whose numbers may change linearly to an end value over optimizer steps."""

    moves: ClassVar[Mapping[str, str]] = {}
    """Number -> the option with its end value."""
    steps: int | None = Field(None, ge=1, description="with `end`: optimizer steps until `end` is reached")

    @property
    def ends(self) -> dict[str, float]:
        """Return the scheduled options and their final values."""
        return {name: end for name, field in self.moves.items() if (end := getattr(self, field)) is not None}

    @model_validator(mode="after")
    def _goes_to_an_end(self) -> Self:
        if bool(self.ends) != (self.steps is not None):
            ends = " or ".join(self.moves.values())
            raise ValueError(f"{ends} and steps only work together. Set both, or neither")
        if still := [name for name in self.ends if getattr(self, name) is None]:
            raise ValueError(
                f"{self.moves[still[0]]} is set but {still[0]} is null, so there is no start value. Set both"
            )
        return self

    def at(self, step: float) -> Self:
        """Return the options at this optimizer step, counted from 0."""
        done = min(step / self.steps, 1.0) if self.steps else 0.0
        return self.model_copy(
            update={name: (1 - done) * getattr(self, name) + done * end for name, end in self.ends.items()}
        )


GRADIENT_COLUMNS = frozenset({"logp", "entropy", "value", "score", "kl_old", "teacher_kl"})
"""Columns of each micro-batch's forward pass; all others exist before `prepare`."""


ROW_COLUMNS = frozenset(
    {
        "score", "reward", "group", "sample_key", "opponent", "truncated", "age", "fresh", "pretrain",
        "side", "rank", "margin", "label",
    }
)  # fmt: skip
"""Columns with one value per row; all others have one per token."""

STEP_COLUMNS = frozenset({"step_start_logp", "step_start_entropy"})
"""Columns of the policy at the start of an optimizer step."""
TOKEN_COLUMNS = (
    frozenset({"old_logp", "recomputed_logp", "ref_logp", "old_value"})
    | STEP_COLUMNS
    | (GRADIENT_COLUMNS - ROW_COLUMNS)
)


@dataclass(frozen=True)
class Prepared:
    """A step with the columns for its loss, the state for its loss and for the next step, and metrics."""

    step: Ragged
    state: State
    metrics: Mapping[str, float] = field(default_factory=dict)
    counts: bool = True
    """True if anything has a weight. If not, the loss's metrics are means over nothing."""


@dataclass(frozen=True)
class Loss:
    """A micro-batch's contribution to the step's loss and metrics. Contributions are added up (`add_metrics`)."""

    total: Tensor
    metrics: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class HeldoutItems:
    """Measurements of each held-out item: its loss, its weight in the mean, and more metrics."""

    loss_I: Tensor
    weight_I: Tensor
    figures: Mapping[str, Tensor] = field(default_factory=dict)
    logps_IK: Tensor | None = None
    """The log-prob of each of an item's answers, if the share of items whose answers all fall is reported."""


def add_metrics(totals: dict[str, Tensor], part: Mapping[str, Tensor]) -> None:
    """Add a part's metrics to the step's: keep the extremes of `_min` and `_max`, and sum all others."""
    for name, value in part.items():
        if name not in totals:
            totals[name] = value
        elif name.endswith(("_min", "_max")):
            totals[name] = (torch.minimum if name.endswith("_min") else torch.maximum)(totals[name], value)
        else:
            totals[name] = totals[name] + value


def step_metrics(totals: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the metrics of a whole step as numbers, with one transfer from the device.

    The mean of weights, `NAME`, and of their squares, `NAME_square`, give the effective sample size as a share of all
    tokens: NAME_ess = (sum w)^2 / (n sum w^2).
    """
    values: list[float] = torch.stack([part.detach().double() for part in totals.values()]).tolist()
    metrics = dict(zip(totals, values, strict=True))
    for name in [name for name in metrics if name.endswith("_square")]:
        weights, square = name.removesuffix("_square"), metrics.pop(name)
        metrics[f"{weights}_ess"] = metrics[weights] ** 2 / square if square else 0.0
    return metrics


class Objective(Protocol):
    """The interface through which the training loop uses an algorithm.

    Example: `LikelihoodObjective(LikelihoodConfig())` (SFT), `PolicyObjective(POLICY_ROWS["grpo"].settings(), 256)`
    """

    @property
    def needs(self) -> frozenset[str]:
        """The columns needed in addition to `logp`."""
        ...

    @property
    def by_token(self) -> bool:
        """True if the loss is a sum over tokens with gradients only through `logp` and `entropy`.

        It can be tiled.
        """
        return False

    @property
    def entropy_in_loss(self) -> bool:
        """True if the loss may have a gradient through `entropy`.

        False if entropy is only measured, which is faster.
        """
        return True

    def initial_state(self) -> State:
        """Return the state before the first step."""
        return {}

    def prepare(self, step: Ragged, state: State) -> Prepared:
        """Return the whole step with weights, advantages etc., without gradient. It may drop rows."""
        ...

    def loss(self, micro: Ragged, state: State) -> Loss:
        """Return the loss of some items of the prepared step, with gradient. `state`: from `prepare`."""
        ...


def columns_before_prepare(needs: frozenset[str]) -> frozenset[str]:
    """Return the columns that must exist before `prepare`: all needed columns except columns of the forward pass."""
    return (needs - GRADIENT_COLUMNS) | ({"old_value"} if "value" in needs else set())


def require_columns(step: Ragged, columns: frozenset[str] | set[str], name: str) -> None:
    """Reject a step without a column that the objective needs."""
    present = {*step.rows, *step.tokens} | ({REWARD_PARTS} if parts_of(step.rows) else set())
    missing = sorted(columns - present)
    if missing:
        raise KeyError(f"objective '{name}' needs the columns {missing}; there are {[*step.rows, *step.tokens]}")


def with_gradient(step: Ragged, columns: Mapping[str, Tensor]) -> Ragged:
    """Return the prepared step with gradient columns, selected by its columns `row` and `token`."""
    row, token = step.rows["row"], step.tokens["token"]
    step = step.with_rows(**{name: column[row] for name, column in columns.items() if name in ROW_COLUMNS})
    return step.with_tokens(**{name: column[token] for name, column in columns.items() if name in TOKEN_COLUMNS})


@dataclass(frozen=True)
class AlgorithmRow:
    """A named preset of a table: its paper, formula and settings, and the settings class."""

    paper: str
    formula: str
    values: Mapping[str, Any]
    model: type[Params] = Params
    run: type[Params] = Params
    """Returns the class of a whole run's settings, if it depends on the preset."""
    name: str = ""

    def merged(self, over: Mapping[str, Any]) -> dict[str, Any]:
        """Return the preset's settings with some replaced, as plain data."""
        return merge_settings(self.model, self.values, over)

    def settings(self, **over: Any) -> Any:
        """Return the preset's settings with some replaced, typed and checked."""
        return self.model.model_validate(self.merged(over))


def named(name: str, row: AlgorithmRow) -> AlgorithmRow:
    """Return the preset with its name."""
    return replace(row, name=name)


def typed(model: type[Params]) -> Callable[[str, AlgorithmRow], AlgorithmRow]:
    """Return a function that sets a preset's name and settings class."""
    return lambda name, row: replace(row, name=name, model=model)


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted path, value) of each leaf."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def part_columns(parts: Mapping[str, tuple[Tensor, float]]) -> dict[str, Tensor]:
    """Return the row columns of rewards by name: each reward's scores and weight."""
    columns: dict[str, Tensor] = {}
    for name, (score_B, weight) in parts.items():
        columns[f"part.{name}"] = score_B
        columns[f"weight.{name}"] = torch.full(score_B.shape, weight, dtype=torch.float64)
    return columns


def parts_of(rows: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, float]]:
    """Return scores and weight of each reward from the columns of `part_columns`."""
    names = [column.removeprefix("part.") for column in rows if column.startswith("part.")]
    return {name: (rows[f"part.{name}"], float(rows[f"weight.{name}"][0])) for name in names}
