"""A task: where its prompts come from, what happens in an episode, how an answer is judged; and the tasks by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

import polars as pl

from posttrain.entries import Entries
from posttrain.errors import DataError, ParamsError
from posttrain.params import PARAMS_FILE, Params, at, check, did_you_mean, read
from posttrain.rollout import Message, Rollout
from posttrain.tables.columns import Kind, with_ids
from posttrain.user_code import is_import_path, load_object

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
    """The turns that answer a completion; None ends the episode."""
    turns: int = 8
    """Most completions of an episode."""
    reward_options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """reward -> options that differ from its defaults for this task's answers; params.yaml may set others."""
    metrics: Callable[[Sequence[Rollout], Sequence[float]], dict[str, float]] = lambda rollouts, outcomes: {}  # noqa: ARG005
    """Figures of an evaluation in addition to the rewards, from rollouts and whether each was right."""
    explain: Callable[[str, Figures, Figures], str] | None = None
    """(label, figures of the reference, figures of a policy) -> a line for the report about what a gain consists of."""


TASKS: Final[Entries[Task]] = Entries(
    "TASKS",
    {
        "two_step": "posttrain.tasks.two_step.task",
        "sums": "posttrain.tasks.arithmetic.task",
        "stories": "posttrain.tasks.arithmetic.task",
        "products": "posttrain.tasks.arithmetic.task",
        "sequences": "posttrain.tasks.arithmetic.task",
        "mixture": "posttrain.tasks.mixture",
    },
)
"""Name -> the module whose own TASKS has it."""
PLAIN: Final = Task()
"""Prompts without a task: one turn, rewards with their defaults."""


@cache
def load_task(name: str) -> Task:
    """The task that a table of prompts names; the empty name is the plain task."""
    if not name:
        return PLAIN
    if name in TASKS:
        return TASKS[name]
    found = load_object(name, "task") if is_import_path(name) else None
    if not isinstance(found, Task):
        fix = "Give the name of a Task" if is_import_path(name) else did_you_mean(name, list(TASKS))
        raise ParamsError(what=f"'{name[:80]}' is not a task", where="task", fix=f"{fix} (docs/tasks.md)")
    return found


def task_tables(run: str) -> dict[Any, Any]:
    """The tables that one run of `data.tasks` generates, with ids."""
    return generated(*task_run(run))


def generated(name: str, generator: Generator, params: Params) -> dict[Any, Any]:
    """The tables of a generator, with ids; prompts that name no task are of this one."""
    tables = dict(generator.tables(params))
    if "prompts" in tables:
        known = {"info": pl.lit("{}"), "answer": pl.lit(""), "task": pl.lit("")}
        missing = [value.alias(key) for key, value in known.items() if key not in tables["prompts"].columns]
        tables["prompts"] = tables["prompts"].with_columns(*missing).with_columns(pl.col("task").replace("", name))
        _check_info(name, tables["prompts"]["info"].to_list())
    return {kind: frame if "id" in frame.columns else with_ids(frame, kind) for kind, frame in tables.items()}


def _check_info(name: str, given: Sequence[Any]) -> None:
    """Refuse what is not a JSON object."""
    for row, info in enumerate(given):
        try:
            fine = isinstance(json.loads(info), dict)
        except (TypeError, ValueError):
            fine = False
        if not fine:
            what = f"row {row} of its prompts has info = {info!r:.60}, which is not a JSON object"
            raise DataError(what=what, where=f"task '{name}'", fix="Write json.dumps({...}), or leave the column out")


def task_run(run: str) -> tuple[str, Generator, Params]:
    """The task that a run of `data.tasks` names, its generator and its parameters."""
    where = f"data.tasks.{run}"
    own = at(read(), where)
    name = own.get("task") if isinstance(own, dict) else None
    if not isinstance(name, str):
        what = f"{where}.task = {name!r:.80} is unknown" if name is not None else f"{where} names no task"
        raise ParamsError(what=what, where=PARAMS_FILE, fix=f"Give it one of: {', '.join(TASKS)}")
    return name, *generator_of(name, {key: own[key] for key in own if key != "task"}, where)


def generator_of(name: str, own: Mapping[str, Any], where: str) -> tuple[Generator, Params]:
    """The generator of a task, with its parameters."""
    if name not in TASKS and not is_import_path(name):
        what = f"{where}.task = '{name[:80]}' is unknown"
        raise ParamsError(what=what, where=PARAMS_FILE, fix=did_you_mean(name, list(TASKS)))
    generator = load_task(name).generator
    if generator is None:
        what = f"{where}.task = '{name}' generates no tables"
        raise ParamsError(what=what, where=PARAMS_FILE, fix="Give the task a generator, or its tables as data.files")
    return generator, check(generator.params, own, where=where)
