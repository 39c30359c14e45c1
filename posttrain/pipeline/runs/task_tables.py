"""Generate and check the tables of a task's run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import polars as pl

from posttrain.data.columns import COLUMNS, OPTIONAL, SPLITS, Kind, with_ids
from posttrain.errors import DataError, ParamsError, PosttrainError, excerpt, shortened
from posttrain.pipeline.params.params_file import at, read
from posttrain.pipeline.runs.own_tables import OwnTables, as_files, own_options, watched_files, with_problem
from posttrain.pipeline.tables.failures import failure_lines, row_failures, structure_failures
from posttrain.pipeline.workspace import PARAMS_FILE
from posttrain.settings.params import Params, check, did_you_mean, placed
from posttrain.settings.plugins import or_package
from posttrain.settings.user_code import is_import_path, place_in_own_code
from posttrain.tasks.task import TASKS, Generator, load_task

OMITTED: Final[Mapping[Kind, Mapping[str, pl.Expr]]] = {
    "prompts": {"answer": pl.lit(""), "info": pl.lit("{}"), "task": pl.lit("")},
    "pairs": {"margin": pl.lit(0.0)},
}
"""Columns besides `id` that a generator may leave out -> default values."""


def task_tables(run: str) -> dict[Any, Any]:
    """Return the tables of a run of `data.tasks`, with ids. The user's own tables are treated like files."""
    name, generator, params = task_run(run)
    where = f"task '{name}', function `{_function(generator)}`"
    with errors_at(f"data.tasks.{run}", params):
        if not TASKS.is_foreign(name):
            return generated(name, generator, params)
        with watched_files(run, where):
            frames = _checked_frames(name, generator, params)
    return as_files(run, where, _function(generator), frames, own_options(run, generator.params))


@contextmanager
def errors_at(where: str, params: Params) -> Iterator[None]:
    """Add the place of these settings to a generator's error."""
    try:
        yield
    except ParamsError as error:
        what = placed(error.what, where, type(params).model_fields)
        raise ParamsError(what=what, where=error.where, fix=error.fix) from error


def generated(name: str, generator: Generator, params: Params) -> dict[Any, Any]:
    """Return the tables of a generator, with ids. Prompts without a task get this one."""
    tables = _checked_frames(name, generator, params)
    tables = {kind: frame if "id" in frame.columns else with_ids(frame, kind) for kind, frame in tables.items()}
    if TASKS.is_foreign(name):  # of the others the tables are checked once, when they are written
        _check_rows(name, generator, tables)
    return tables


def _checked_frames(name: str, generator: Generator, params: Params) -> dict[Any, pl.DataFrame]:
    """Return a generator's frames with the right columns. Only the user's own frames may lack `split`."""
    frames = _call_generator(name, generator, params)
    tables = {kind: _with_default_columns(frame, kind) for kind, frame in frames.items()}
    for kind, frame in tables.items():
        whole = (
            frame if "split" in frame.columns or not TASKS.is_foreign(name) else frame.with_columns(split=pl.lit(""))
        )
        if problems := structure_failures(_ordered(with_problem(whole, kind), kind), kind):
            fix = f"A '{kind}' table has the columns {', '.join(COLUMNS[kind])} (docs/data.md)"
            raise _generator_error(name, generator, f"its `{kind}` table is wrong: {'; '.join(problems)}", fix)
    if "prompts" in tables:
        tables["prompts"] = tables["prompts"].with_columns(pl.col("task").replace("", name))
        _check_info(name, tables["prompts"]["info"].to_list())
    return tables


def _function(generator: Generator) -> str:
    return getattr(generator.tables, "__name__", "tables")


def _call_generator(name: str, generator: Generator, params: Params) -> dict[Kind, pl.DataFrame]:
    """Return a generator's frames after checking that they are the tables that the generator lists."""
    try:
        frames: Any = generator.tables(params)
    except PosttrainError:
        raise
    except Exception as error:
        if not TASKS.is_foreign(name):
            raise
        what = f"it raised {type(error).__name__}: {shortened(str(error), 300)}{place_in_own_code(error)}"
        raise _generator_error(name, generator, what, "Fix it; POSTTRAIN_TRACEBACK=1 shows where") from error
    kinds = ", ".join(generator.kinds)
    if not isinstance(frames, Mapping):
        what = f"it returned a {type(frames).__name__}, not a dict of tables"
        raise _generator_error(name, generator, what, f"Return a dict with a polars DataFrame for each of: {kinds}")
    known = [kind for kind in COLUMNS if SPLITS[kind]]
    if set(frames) != set(generator.kinds) or not set(frames) <= set(known):
        what = f"it returned the tables {', '.join(map(str, frames)) or '(none)'}, but its Generator declares {kinds}"
        fix = f"Return the tables that the Generator declares; kinds of tables are {', '.join(known)}"
        raise _generator_error(name, generator, what, fix)
    for kind, frame in frames.items():
        if not isinstance(frame, pl.DataFrame):
            what = f"its `{kind}` table is a {type(frame).__name__}, not a polars DataFrame"
            raise _generator_error(name, generator, what, "Return pl.DataFrame(rows)")
    return dict(frames)


def _with_default_columns(frame: pl.DataFrame, kind: Kind) -> pl.DataFrame:
    """Return the frame with defaults for the columns that a generator may leave out."""
    missing = [value.alias(key) for key, value in OMITTED.get(kind, {}).items() if key not in frame.columns]
    return frame.with_columns(missing)


def _ordered(frame: pl.DataFrame, kind: Kind) -> pl.DataFrame:
    """Return the frame in its final column order, to check the columns before ids exist."""
    if "id" in frame.columns:
        return frame
    wanted = [name for name in (*COLUMNS[kind], *OPTIONAL.get(kind, {})) if name in frame.columns]
    return frame.select(pl.lit("").alias("id"), *wanted)


def _check_rows(name: str, generator: Generator, tables: Mapping[Kind, pl.DataFrame]) -> None:
    for kind, frame in tables.items():
        if failures := row_failures(frame, kind):
            problems = "\n  ".join(failure_lines(frame, failures))
            count = pl.concat([failure.rows for failure in failures]).n_unique()
            what = f"{count:,} of {frame.height:,} rows of its `{kind}` table (counted from 0) break a rule:"
            raise _generator_error(name, generator, f"{what}\n  {problems}", "Fix the function")


def _generator_error(name: str, generator: Generator, what: str, fix: str) -> DataError:
    return DataError(what=what, where=f"task '{name}', function `{_function(generator)}`", fix=fix)


def _check_info(name: str, infos: Sequence[Any]) -> None:
    """Reject an `info` that is not a JSON object."""
    for row, info in enumerate(infos):
        try:
            valid = isinstance(json.loads(info), dict)
        except (TypeError, ValueError):
            valid = False
        if not valid:
            what = f"row {row} of its prompts has info = {excerpt(info)}, which is not a JSON object"
            raise DataError(what=what, where=f"task '{name}'", fix="Write json.dumps({...}), or omit the column")


def task_run(run: str) -> tuple[str, Generator, Params]:
    """Return the task of a run of `data.tasks`, its generator and its parameters."""
    return typed_task(run, at(read(), f"data.tasks.{run}"))


def typed_task(run: str, run_settings: Any) -> tuple[str, Generator, Params]:
    """Return the task of a run's mapping in params.yaml, its generator and its parameters."""
    where = f"data.tasks.{run}"
    name = run_settings.get("task") if isinstance(run_settings, dict) else None
    if not isinstance(name, str):
        what = f"{where}.task = {excerpt(name, 80)} is unknown" if name is not None else f"{where}.task is missing"
        raise ParamsError(what=what, where=PARAMS_FILE, fix=f"Give one of: {', '.join(TASKS)}")
    generator = load_task(name).generator if TASKS.is_foreign(name) else None
    shared = own_options(run, generator.params) if generator else {}
    if shared:
        check(OwnTables, shared, where=where)
    return name, *generator_of(
        name, {key: run_settings[key] for key in run_settings if key not in ("task", *shared)}, where
    )


def generator_of(name: str, run: Mapping[str, Any], where: str) -> tuple[Generator, Params]:
    """Return the generator of a task, with its parameters."""
    if name not in TASKS and not is_import_path(name):
        what = f"{where}.task = '{name[:80]}' is unknown"
        raise ParamsError(what=what, where=PARAMS_FILE, fix=or_package(did_you_mean(name, list(TASKS))))
    generator = load_task(name).generator
    if generator is None:
        what = f"{where}.task = '{name}' generates no tables"
        raise ParamsError(what=what, where=PARAMS_FILE, fix="Give the task a generator, or its tables under data.files")
    return generator, check(generator.params, run, where=where)
