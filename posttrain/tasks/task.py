"""A task: where its prompts come from, what happens in an episode, how an answer is judged; and the tasks by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

import polars as pl

from posttrain.data.columns import Kind
from posttrain.errors import ParamsError
from posttrain.rollout import Rollout
from posttrain.settings.listing import Listing, instance
from posttrain.settings.params import Params, did_you_mean
from posttrain.settings.plugins import or_package
from posttrain.settings.user_code import is_import_path, load_object
from posttrain.tasks.step import Reply

Figures = Mapping[str, float]


def one_turn(rollout: Rollout) -> None:  # noqa: ARG001
    """The default episode: it ends with the first completion."""
    return


@dataclass(frozen=True)
class Generator:
    """Makes the tables of a task from parameters; `id` and the columns of `OMITTED` may be left out."""

    params: type[Params]
    kinds: tuple[Kind, ...]
    tables: Callable[[Any], dict[Kind, pl.DataFrame]]


@dataclass(frozen=True)
class Task:
    """One kind of prompts. Its name is in the column `task` of a table of prompts; tables of your own have none.

    Example: `guess = Task(reply=lambda rollout: None if "7" in rollout.text else [{"role": "user", "content": "No"}])`
    """

    generator: Generator | None = None
    reply: Reply = one_turn
    """The step that follows a completion: a Step, turns alone, or None, which ends the episode."""
    turns: int = 8
    """Most completions of an episode."""
    seconds: float = 10.0
    """Most seconds of `reply` in an episode, all turns together; it limits tasks by import path."""
    workers: int = 2
    """Processes that run `reply` of a task by import path."""
    reward_options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """reward -> options that differ from its defaults for this task's answers; params.yaml may set others."""
    metrics: Callable[[Sequence[Rollout], Sequence[float]], dict[str, float]] = lambda rollouts, outcomes: {}  # noqa: ARG005
    """Figures of an evaluation in addition to the rewards, from rollouts and whether each was right."""
    explain: Callable[[str, Sequence[Figures], Sequence[Figures]], str] | None = None
    """(label, figures of each training of the reference, those of a policy) -> a line about what a gain consists of."""

    @property
    def has_turns(self) -> bool:
        """Whether its episodes can have several turns."""
        return self.reply is not one_turn


TASKS: Final[Listing[Task]] = Listing("posttrain.tasks", "TASKS", group="tasks", adopt=instance(Task))
"""The tasks of every file of the folder, and of plugins."""
PLAIN: Final = Task()
"""Prompts without a task: one turn, rewards with their defaults."""


@cache
def load_task(name: str) -> Task:
    """Return the task that a table of prompts names; the empty name is the plain task."""
    if not name:
        return PLAIN
    if name in TASKS:
        return TASKS[name]
    found = load_object(name, "task") if is_import_path(name) else None
    if not isinstance(found, Task):
        fix = f"{did_you_mean(name, list(TASKS))} (docs/tasks.md)"
        fix = "Give the name of a Task (docs/tasks.md)" if is_import_path(name) else or_package(fix)
        raise ParamsError(what=f"'{name[:80]}' is not a task", where="task", fix=fix)
    return found
