"""Worker processes that run the user's code: a task or a reward."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

from posttrain import errors
from posttrain.errors import RewardError
from posttrain.isolation.child import Child, DiedError, TooSlowError
from posttrain.isolation.library import PASSED, library_command, library_environment
from posttrain.isolation.pool import Pool
from posttrain.measure.masking import secret_variables
from posttrain.settings.host import HOST

START_SECONDS = 120.0
"""Seconds for the imports of a worker process."""


def worker_pool(program: str, setup: Mapping[str, Any], size: int, env: Collection[str] | None = None) -> Pool:
    """Make a pool of processes that run one reward or one task. `program`: the module that they run.

    They get the secret variables in `env`, or without it the variables that params.yaml lists.

    Example: `worker_pool("posttrain.tasks.worker", {"task": "my_tool:task", "label": "task 'my_tool:task'"}, 2)`
    """
    return Pool(partial(_started, program, setup, worker_environment(env)), size)


def worker_environment(env: Collection[str] | None) -> dict[str, str]:
    """Return this process's environment without the secrets that are not listed."""
    known = library_environment()
    secret = secret_variables(known).keys() - {*PASSED, *(HOST.secret_names() if env is None else env)}
    return {name: value for name, value in known.items() if name not in secret}


def _started(program: str, setup: Mapping[str, Any], environment: Mapping[str, str]) -> Child:
    """Start a process and wait until it has imported the user's module."""
    child = Child(library_command(program), environment)
    try:
        told = {"settings_file": HOST.settings_file, "secret_names": sorted(set(HOST.secret_names()))}
        answer = child.ask({**setup, **told}, START_SECONDS)
    except (DiedError, TooSlowError) as error:
        child.kill()
        what = f"its worker process did not start ({error})"
        fix = HOST.fix("worker", "Read what it printed above")
        raise RewardError(what=what, where=str(setup["label"]), fix=fix) from error
    if "error" in answer:
        kind, what, where, fix = answer["error"]
        raise getattr(errors, kind)(what=what, where=where, fix=fix)
    return child
