"""A task: where its prompts come from, what happens in an episode, how its rewards read an answer, what it measures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from posttrain.params import Params
from posttrain.rollout import Message, Rollout

if TYPE_CHECKING:
    import polars as pl

    from posttrain.tables.columns import Kind

Figures = Mapping[str, float]


def one_turn(rollout: Rollout) -> Sequence[Message] | None:  # noqa: ARG001
    """The default episode: it ends with the first completion."""
    return None


@dataclass(frozen=True)
class Generator:
    """Makes the tables of a task from parameters; the columns `id`, `task`, `info` and `answer` may be left out."""

    params: type[Params]
    kinds: tuple[Kind, ...]
    tables: Callable[[Any], dict[Kind, pl.DataFrame]]


@dataclass(frozen=True)
class Task:
    """One kind of prompts. Its name is in the column `task` of a table of prompts; tables of your own have none.

    Example: `guess = Task(reply=lambda rollout: None if "7" in rollout.text else [{"role": "user", "content": "No"}])`
    """

    generator: Generator | None = None
    reply: Callable[[Rollout], Sequence[Message] | None] = one_turn
    """What the policy is told after a completion; None ends the episode."""
    turns: int = 8
    """Most completions of an episode."""
    reward_options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """reward -> options that differ from its defaults for this task's answers; params.yaml may set others."""
    metrics: Callable[[Sequence[Rollout], Sequence[float]], dict[str, float]] = lambda rollouts, outcomes: {}  # noqa: ARG005
    """Figures of an evaluation beside the rewards, from rollouts and whether each was right."""
    explain: Callable[[str, Figures, Figures], str] | None = None
    """(label, figures of the reference, figures of a policy) -> a line for the report about what a gain consists of."""
