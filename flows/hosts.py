"""Stages on several hosts. Each host serves the flow `stage` from its own clone, and all share one DVC remote.

A host runs `posttrain workers`, and `posttrain flow --workers` sends stages to the hosts. A host pulls the inputs, runs
the stage, and pushes outputs and run cache. The coordinator then pulls the result from the run cache. Only the
coordinator writes the dvc.lock that is committed.
"""

from __future__ import annotations

import os
import queue
import socket
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from posttrain.errors import PipelineError, PosttrainError
from posttrain.measure.terminal import escaped
from posttrain.pipeline.lineage.kept_inputs import require_kept
from posttrain.pipeline.lineage.user_text import push_notes
from posttrain.pipeline.lock.git import git
from posttrain.pipeline.lock.lock_check import check_and_sync
from posttrain.pipeline.params.yaml_files import read_yaml
from posttrain.pipeline.workspace import PARAMS_FILE

from . import process
from .artifacts import Outcome
from .graph import Stage
from .orphan_guard import OrphanGuard
from .sweep_config import check_committed

FLOW = "stage"
_NEVER: Final = datetime.min.replace(tzinfo=UTC)
_POLL = 1.0
_MESSAGE_LINES = 12
_START_TIMEOUT = 60.0
"""Prefect lists a dead host as ready for up to a minute. A stage that it does not start goes to another host."""
_LOST = "LOST"
_SILENT_S = 40.0
"""A host asks the server for work every few seconds, even while it runs a stage; otherwise it is dead."""
_LOOK_S = 5.0
"""Seconds between checks for new hosts while a stage waits for one."""
_CANCEL_TIMEOUT = 30.0
"""Seconds that a host may take to end a cancelled stage. A dead host never reports it."""


def run_stage(root: Path, name: str, commit: str, timeout: float | None) -> None:
    """Pull, run and push one stage on a host. If a step fails, raise an error with its last lines."""
    place = f"In {root} on {socket.gethostname()}"
    check_committed(str(root), f"{place}: git stash, or commit them and bring the commit to the coordinator")
    head = git("rev-parse", "HEAD").strip()
    if head != commit:
        # --force: DVC has written dvc.lock here, which the new commit may bring; nothing else is changed.
        fix = f"{place}: git fetch && git checkout --force {commit[:12]}"
        raise PipelineError(
            what=f"this clone is at {head[:12]}, but the flow is at {commit[:12]}", where=str(root), fix=fix
        )
    with OrphanGuard() as guard:
        # Without -s: upstream stages ran elsewhere and come from the run cache, which --pull fetches.
        # Without --allow-missing: it treats a stage without dependencies that never ran as unchanged.
        _dvc(root, guard, "repro", "--pull", name, timeout=timeout)
        _dvc(root, guard, "push", "--run-cache")


def push_results(root: Path) -> None:
    """Push the coordinator's results to the remote, because otherwise hosts would run these stages again."""
    if Path(PARAMS_FILE).is_file():
        for line in push_notes(read_yaml(PARAMS_FILE)):  # a flow also runs projects with other sections
            print(escaped(line), file=sys.stderr, flush=True)
    with OrphanGuard() as guard:
        _dvc(root, guard, "push", "--run-cache")


def pull_result(root: Path, name: str) -> None:
    """Pull a host's result from the remote's run cache and record it in the coordinator's dvc.lock."""
    with OrphanGuard() as guard:
        _dvc(root, guard, "repro", "--pull", name)


class Workers:
    """The hosts with workers. Each runs one stage at a time. Hosts may join and die while the flow runs."""

    def __init__(self, root: Path) -> None:
        check_committed("--workers", "Commit them, because hosts check out the commit: git commit -a")
        require_kept("--workers")
        self._root = root
        self._commit = git("rev-parse", "HEAD").strip()
        self._free: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._pulling = threading.Lock()
        self._serving: set[str] = set()
        self._last_seen: dict[str, datetime | None] = {}
        self._looking, self._looked = threading.Lock(), 0.0
        self._look()
        if not self._serving:
            fix = "Run `posttrain workers` in each clone, with the same PREFECT_API_URL"
            raise PipelineError(what="no host is running `posttrain workers`", where="--workers", fix=fix)
        push_results(root)

    def run(self, stage: Stage, cancel: threading.Event) -> Outcome:
        """Run the stage on a free host and pull its result."""
        start, message = time.monotonic(), "no host is left"
        while (host := self._next_free(cancel)) is not None:
            state = ""
            try:
                state, message = _run_on(host, stage, self._commit, cancel)
            finally:
                if state == _LOST:
                    with self._looking:
                        self._serving.discard(host)
                    print(escaped(f"{stage.name}: {message}"), file=sys.stderr, flush=True)
                else:
                    self._free.put(host)
            if state != _LOST:
                return self._outcome(stage, host, state, message, start)
        if cancel.is_set():
            return Outcome("Cancelled", message=f"{stage.name}: not started")
        return Outcome("Failed", time.monotonic() - start, f"stage '{stage.name}' was not started: {message}")

    def _outcome(self, stage: Stage, host: str, state: str, message: str, start: float) -> Outcome:
        if state == "CANCELLED":
            return Outcome("Cancelled", time.monotonic() - start, f"{stage.name}: cancelled on {host}")
        if state != "COMPLETED":
            what = f"stage '{stage.name}' failed on {host}:\n{message}"
            return Outcome("Failed", time.monotonic() - start, what)
        try:
            with self._pulling:
                pull_result(self._root, stage.name)
                check_and_sync(self._root, stage.name)
        except PosttrainError as error:
            return Outcome("Failed", time.monotonic() - start, str(error))
        return Outcome("Completed", time.monotonic() - start, f"on {host}")

    def _next_free(self, cancel: threading.Event) -> str | None:
        waiting_since = time.monotonic()
        while not cancel.is_set() and (self._serving or time.monotonic() - waiting_since < _START_TIMEOUT):
            try:
                return self._free.get(timeout=_POLL)
            except queue.Empty:
                self._look()
        return None

    def _look(self) -> None:
        """Add new hosts, and lost hosts that ask for work again."""
        with self._looking:
            if time.monotonic() - self._looked < _LOOK_S:
                return
            for host, seen in _serving_hosts().items():
                if host not in self._serving and seen != self._last_seen.get(host, _NEVER):
                    self._serving.add(host)
                    self._free.put(host)
                self._last_seen[host] = seen
            self._looked = time.monotonic()


def _dvc(root: Path, guard: OrphanGuard, *words: str, timeout: float | None = None) -> None:
    command = process.Command([sys.executable, "-m", "dvc", "--wait-for-lock", *words], root, os.environ, timeout)
    ended = process.run(command, write=lambda line: print(line, flush=True), cancel=threading.Event(), guard=guard)
    timed_out = ended.reason is process.Reason.TIMED_OUT
    if ended.code or timed_out:
        how = f"timed out after {ended.seconds:.0f} s" if timed_out else f"ended with exit code {ended.code}"
        tail = "\n".join(f"  {line}" for line in ended.tail[-_MESSAGE_LINES:])
        fix = "Fix it there and run the flow again"
        raise PipelineError(what=f"dvc {words[0]} {how}:\n{tail}\n", where=str(root), fix=fix)


def _serving_hosts() -> dict[str, datetime | None]:
    """Return the hosts that the server lists as serving, and when each last asked for work."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowFilter, FlowFilterName
    from prefect.client.schemas.objects import DeploymentStatus

    with get_client(sync_client=True) as client:
        deployments = client.read_deployments(flow_filter=FlowFilter(name=FlowFilterName(any_=[FLOW])))
    ready = (
        deployment
        for deployment in deployments
        if deployment.status == DeploymentStatus.READY and not deployment.paused
    )
    return {
        deployment.name: deployment.last_polled for deployment in sorted(ready, key=lambda deployment: deployment.name)
    }


def _run_on(host: str, stage: Stage, commit: str, cancel: threading.Event) -> tuple[str, str]:
    """Run the stage on the host, wait, and forward a cancellation. Return the last state's type and message."""
    from httpx import HTTPError
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.objects import StateType
    from prefect.deployments import run_deployment
    from prefect.states import Cancelled, Cancelling, Crashed

    parameters = {"name": stage.name, "commit": commit, "timeout": stage.needs.timeout}
    run: Any = run_deployment(f"{FLOW}/{host}", parameters=parameters, timeout=0)
    cancelled_at, scheduled_at = 0.0, time.monotonic()
    seen, seen_at = None, scheduled_at
    with get_client(sync_client=True) as client:
        while True:
            try:
                state = client.read_flow_run(run.id).state
                if state is not None and state.is_final():
                    return state.type.value, state.message or ""
                last = client.read_deployment(run.deployment_id).last_polled
            except HTTPError:  # the server may answer again later, and the host runs on meanwhile
                if cancel.wait(_POLL):
                    return StateType.CANCELLED.value, "the server does not answer"
                scheduled_at = seen_at = time.monotonic()
                continue
            if cancel.wait(_POLL) and not cancelled_at:
                client.set_flow_run_state(run.id, Cancelling(), force=True)
                cancelled_at = time.monotonic()
            elif cancelled_at:
                time.sleep(_POLL)
            waiting = state is None or state.type is StateType.SCHEDULED
            if cancelled_at and (waiting or time.monotonic() - cancelled_at > _CANCEL_TIMEOUT):
                return StateType.CANCELLED.value, "not started" if waiting else "the host does not answer"
            if waiting and time.monotonic() - scheduled_at > _START_TIMEOUT:
                client.set_flow_run_state(run.id, Cancelled(), force=True)
                return _LOST, f"{host} has not started it within {_START_TIMEOUT:.0f} s. Is it still running?"
            if last != seen:
                seen, seen_at = last, time.monotonic()
            elif not waiting and not cancelled_at and time.monotonic() - seen_at > _SILENT_S:
                client.set_flow_run_state(run.id, Crashed(message=f"{host} does not answer"), force=True)
                return _LOST, f"{host} has not answered for {_SILENT_S:.0f} s; another host takes the stage"
