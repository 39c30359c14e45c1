"""The flows of deployments: the pipeline, an experiment with other settings, and a sweep.

`posttrain deploy` and prefect.yaml name them. Their parameters have built-in types, which Prefect's pages can edit. A
run checks all of them before anything starts.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger
from prefect.client.schemas.objects import State
from prefect.runtime import deployment
from prefect.states import Completed, Failed
from prefect.task_runners import ThreadPoolTaskRunner

from posttrain.errors import ParamsError, PosttrainError
from posttrain.locks import hold
from posttrain.measure.masking import masked
from posttrain.measure.terminal import escaped
from posttrain.pipeline.compare.experiments import TIMES

from . import artifacts, environment, labels, run, sweep_runner, task_runners
from .graph import GraphReader, find_root
from .orphan_guard import OrphanGuard
from .sweep import FOLDER
from .sweep_config import Sweep, check_sweep, checked_sweep_name, read_sweep
from .sweep_plan import Plan, plan_sweep
from .sweep_start import Start

_SHOWN = 3
"""The experiments that a message names."""
_PARAMETERS = "the deployment's parameters"


@flow(name="pipeline", task_runner=ThreadPoolTaskRunner(), persist_result=False, **run.HOOKS)  # type: ignore[arg-type]
def pipeline(
    targets: list[str] | None = None,
    set: dict[str, Any] | None = None,  # noqa: A002 - the name that a deployment shows
    env: dict[str, str] | None = None,
) -> State[Any]:
    """Run the stale stages in the current folder; with `set`, an experiment with these settings of params.yaml.

    `targets`: stages, with all that they need; empty: all. `env`: variables from Prefect's secrets and variables.
    """
    try:
        root = _entered(env)
        if set:
            sweep = check_sweep({"settings": [set], "targets": targets or []}, _PARAMETERS)
            return _run_sweep(root, _own_name(), sweep, 1, _PARAMETERS)
        stages = GraphReader(root, targets or []).stages
    except PosttrainError as error:
        return _refused(error, " ".join(targets or []) or "all")
    return run.execute(root, stages, targets or [], "stale", "local")


@flow(name="sweep", task_runner=ThreadPoolTaskRunner(), persist_result=False, **run.HOOKS)  # type: ignore[arg-type]
def sweep(
    name: str,
    set: dict[str, list[Any]] | None = None,  # noqa: A002 - the name that a deployment shows
    seeds: list[int] | None = None,
    targets: list[str] | None = None,
    jobs: int | None = None,
    env: dict[str, str] | None = None,
) -> State[Any]:
    """Run the missing experiments of a sweep in the current folder, like `posttrain sweep`.

    `set`: keys with lists of values; without it the file sweeps/NAME.yaml is read. `jobs`: experiments at once.
    """
    try:
        root = _entered(env)
        if jobs is not None and jobs < 1:
            raise ParamsError(what=f"jobs = {jobs}: at least 1 must run", where=_PARAMETERS, fix="Give 1 or more")
        data = {key: value for key, value in {"grid": set, "seeds": seeds, "targets": targets}.items() if value}
        file = FOLDER / f"{checked_sweep_name(name)}.yaml"
        given = set or not file.is_file()
        return _run_sweep(root, name, check_sweep(data, _PARAMETERS) if given else read_sweep(file, data), jobs)
    except PosttrainError as error:
        return _refused(error, name)


def _refused(error: PosttrainError, does: str) -> State[Any]:
    """Name the run as others are named, log why it starts nothing, and return its final state."""
    labels.label(Path.cwd(), does)
    get_run_logger().error(escaped(masked(str(error))))
    return Failed(message=str(error))


def _entered(env: dict[str, str] | None) -> Path:
    """Return the project's folder, which becomes the current one, with the run's variables set."""
    environment.load(env or {})
    root = find_root(Path.cwd())
    os.chdir(root)
    return root


def _own_name() -> str:
    """Return the deployment's name as the first part of the names of its experiments."""
    return re.sub(r"[^A-Za-z0-9]+", "_", str(deployment.name or "set")).strip("_") or "set"


def _does(plan: Plan) -> str:
    """Return what the name of the run says: the one experiment's settings, or how many of the sweep run."""
    if len(plan.planned) > 1:
        return f"{plan.name}: {len(plan.pending)} experiments"
    settings = plan.planned[0].overrides.items()
    return " ".join(f"{'.'.join(key.split('.')[-2:])}={value}" for key, value in settings)


def _run_sweep(root: Path, name: str, sweep: Sweep, jobs: int | None, where: str = "sweep") -> State[Any]:
    """Run the experiments that have not run, and publish the comparison of all. `where`: what an error names."""
    task_runners.restore_sigterm()
    run.filter_repeated_failures()
    plan = plan_sweep(root, name, sweep, where)
    more = f" and {len(plan.planned) - _SHOWN} more" if len(plan.planned) > _SHOWN else ""
    names = ", ".join(trial.name for trial in plan.planned[:_SHOWN]) + more
    if not plan.pending:
        labels.label(root, _does(plan))
        artifacts.publish_sweep(root, plan.name, plan.measured)
        return Completed(name="Cached", message=f"nothing to do: {names} have run")
    hold(root / TIMES / f"{plan.name}.lock", f"the sweep {plan.name}")
    with OrphanGuard() as guard:
        runner = sweep_runner.SweepRunner(Start.of(root), plan.pending, plan.targets, plan.gpus, guard)
        state = sweep_runner.execute(runner, plan.jobs(jobs), plan.warm_up, _does(plan))
    artifacts.publish_sweep(root, plan.name, plan.measured)
    return state
