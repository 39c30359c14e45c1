"""The tasks by name, and a user's own by import path."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import polars as pl

from posttrain.entries import Entries
from posttrain.errors import DataError, ParamsError
from posttrain.params import PARAMS_FILE, Params, at, check, did_you_mean, read
from posttrain.tables.identity import with_ids
from posttrain.tasks.task import Generator, Task
from posttrain.user_code import is_import_path, load_object

TASKS: Final[Entries[Task]] = Entries("TASKS", {"two_step": "posttrain.tasks.two_step.task"})
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
    """The tables that one run of `data.tasks` generates, with ids; prompts name their task."""
    name, generator, params = task_run(run)
    tables = dict(generator.tables(params))
    if "prompts" in tables:
        known = {"info": pl.lit("{}"), "answer": pl.lit("")}
        missing = [value.alias(key) for key, value in known.items() if key not in tables["prompts"].columns]
        tables["prompts"] = tables["prompts"].with_columns(*missing, pl.lit(name).alias("task"))
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
    if not isinstance(name, str) or (name not in TASKS and not is_import_path(name)):
        what = f"{where}.task = {name!r:.80} is unknown" if name is not None else f"{where} names no task"
        hint = did_you_mean(str(name), list(TASKS)) if name is not None else f"Give it one of: {', '.join(TASKS)}"
        raise ParamsError(what=what, where=PARAMS_FILE, fix=hint)
    generator = load_task(name).generator
    if generator is None:
        what = f"{where}.task = '{name}' generates no tables"
        raise ParamsError(what=what, where=PARAMS_FILE, fix="Give the task a generator, or its tables as data.files")
    return name, generator, check(generator.params, {key: own[key] for key in own if key != "task"}, where=where)
