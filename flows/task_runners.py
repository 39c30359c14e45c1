"""Stages as Ray or Dask tasks, on one machine or on a cluster whose hosts share this folder at the same path.

Without an address, a small local cluster starts on loopback and ends with the flow. RAY_ADDRESS or
DASK_SCHEDULER_ADDRESS selects an existing one. As always, dvc.lock decides which stages are done.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from posttrain.errors import PipelineError
from posttrain.isolation.library import python_path

from .graph import Executor, Stage

CLUSTER_RUNNERS = ("ray", "dask")
LOOPBACK = "127.0.0.1"


def task_runner(executor: Executor) -> TaskRunner[Any]:
    """Return Prefect's task runner for an executor."""
    if executor not in CLUSTER_RUNNERS:
        return ThreadPoolTaskRunner()
    if find_spec(f"prefect_{executor}") is None:
        fix = f"pip install -c constraints.txt -e '.[{executor}]'"
        raise PipelineError(what=f"prefect-{executor} is not installed", where=f"--{executor}", fix=fix)
    runner: TaskRunner[Any] = _ray() if executor == "ray" else _dask()
    return runner


def restore_sigterm() -> None:
    """Make Python handle SIGTERM again. Once started, Ray would abort the process instead."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))


@contextmanager
def gpu_resources(executor: Executor, stage: Stage) -> Iterator[None]:
    """Make tasks submitted in this context wait for the stage's GPUs, which Ray or Dask assigns."""
    if executor not in CLUSTER_RUNNERS or not stage.needs.gpus:
        yield
        return
    if executor == "ray":
        from prefect_ray.context import remote_options

        with remote_options(num_gpus=stage.needs.gpus):
            yield
    else:
        from dask import annotate

        with annotate(resources={"GPU": stage.needs.gpus}):
            yield


def _ray() -> Any:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # it would send usage data to the vendor
    # Ray would kill the guard of a stage but not the stage. The guard ends the stage once its worker is gone.
    os.environ["RAY_kill_child_processes_on_worker_exit"] = "false"  # noqa: SIM112 (Ray spells it so)
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    from prefect_ray import RayTaskRunner

    workers = {"runtime_env": {"env_vars": {"PYTHONPATH": python_path()}}}
    address = os.environ.get("RAY_ADDRESS")
    if address:
        return RayTaskRunner(address=address, init_kwargs=workers)
    local = {"include_dashboard": False, "_node_ip_address": LOOPBACK}
    return RayTaskRunner(init_kwargs={**workers, **local})


def _dask() -> Any:
    from prefect_dask import DaskTaskRunner

    logging.getLogger("distributed").setLevel(logging.WARNING)
    address = os.environ.get("DASK_SCHEDULER_ADDRESS")
    if address:
        return DaskTaskRunner(address=address)
    os.environ["PYTHONPATH"] = python_path()
    local = {"host": LOOPBACK, "dashboard_address": None, "threads_per_worker": 1}
    return DaskTaskRunner(cluster_kwargs=local)
