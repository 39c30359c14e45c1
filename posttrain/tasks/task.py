"""A task (the source of prompts, the steps of an episode, the rewards), and all tasks by name."""

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
    """End the episode after the first completion (the default)."""
    return


@dataclass(frozen=True)
class Generator:
    """Makes the tables of a task from parameters. It may omit `id` and the columns in `OMITTED`."""

    params: type[Params]
    kinds: tuple[Kind, ...]
    tables: Callable[[Any], dict[Kind, pl.DataFrame]]


@dataclass(frozen=True)
class Task:
    """One kind of prompts. The column `task` of a prompt table has its name; it is empty in your own tables.

    Example: `guess = Task(reply=lambda rollout: None if "7" in rollout.text else [{"role": "user", "content": "No"}])`
    """

    generator: Generator | None = None
    reply: Reply = one_turn
    """Return the step after a completion: a Step, a list of turns, or None, which ends the episode."""
    turns: int = 8
    """Maximum number of completions of an episode."""
    seconds: float = 10.0
    """Maximum number of seconds for all calls of `reply` in an episode. It limits tasks by import path."""
    workers: int = 2
    """The number of processes that run `reply` of a task by import path."""
    reward_options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """reward -> options that replace its defaults for this task's answers. params.yaml may replace them again."""
    metrics: Callable[[Sequence[Rollout], Sequence[float]], dict[str, float]] = lambda rollouts, outcomes: {}  # noqa: ARG005
    """Extra metrics of an evaluation, computed from rollouts and whether each was right."""
    explain: Callable[[str, Sequence[Figures], Sequence[Figures]], str] | None = None
    """(label, metrics of each reference run, metrics of a policy) -> a line that says where a gain comes from."""

    @property
    def has_turns(self) -> bool:
        """True if its episodes can have several turns."""
        return self.reply is not one_turn


TASKS: Final[Listing[Task]] = Listing("posttrain.tasks", "TASKS", group="tasks", adopt=instance(Task))
"""The tasks of every file in the folder, and of plugins."""
PLAIN: Final = Task()
"""Prompts without a task: one turn, and rewards with their defaults."""


@cache
def load_task(name: str) -> Task:
    """Return the task with this name in a prompt table. The empty name is the plain task."""
    if not name:
        return PLAIN
    if name in TASKS:
        return TASKS[name]
    loaded = load_object(name, "task") if is_import_path(name) else None
    if not isinstance(loaded, Task):
        fix = f"{did_you_mean(name, list(TASKS))} (docs/tasks.md)"
        fix = "Give the name of a Task (docs/tasks.md)" if is_import_path(name) else or_package(fix)
        raise ParamsError(what=f"'{name[:80]}' is not a task", where="task", fix=fix)
    return loaded
