"""Stages on several hosts: each host serves the flow `stage` from its own clone, and all share one DVC remote.

`python -m flows.workers` is what a host runs; `python -m flows.pipeline --workers` hands stages to those that serve.
A host pulls what the stage needs, runs it, and pushes outputs and run cache; the coordinator then takes the result from
the run cache and alone writes the dvc.lock that is committed.
"""

from __future__ import annotations

import argparse
import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flows import process, server
from flows.graph import Stage, find_root
from flows.guard import Guard
from flows.plan import check_committed
from flows.record import Outcome
from flows.untracked import untracked_inputs
from posttrain.compare.experiments import git
from posttrain.errors import PipelineError, PosttrainError
from posttrain.params import read
from posttrain.settle import settle
from posttrain.user_text import push_notes
from posttrain.workspace import python_path

FLOW = "stage"
_POLL = 1.0
_TAIL = 12
_PICKED_UP = 60.0
"""A host that has died is taken for serving for up to a minute more; a stage handed to it goes to another one."""
_GONE = "GONE"
_ENDS = 30.0
"""So long a host may take to end a stage that is cancelled; one that has died would never say that it has."""


def bring_up(root: Path, name: str, commit: str, timeout: float | None) -> None:
    """What a host does for one stage: pull, run, push; any step that fails is an error with its last lines."""
    here = git("rev-parse", "HEAD").strip()
    if here != commit:
        fix = f"In {root} on {socket.gethostname()}: git fetch && git checkout {commit[:12]}"
        raise PipelineError(what=f"this clone is at {here[:12]}, the flow at {commit[:12]}", where=str(root), fix=fix)
    with Guard() as guard:
        # What is upstream was made elsewhere and comes from the run cache, which --pull fetches; so without -s.
        # And without --allow-missing, which takes a stage that has no dependencies and never ran for unchanged.
        _dvc(root, guard, "repro", "--pull", name, timeout=timeout)
        _dvc(root, guard, "push", "--run-cache")


def share(root: Path) -> None:
    """What the coordinator has made itself, so that no host makes it again: a host knows of nothing but the remote."""
    for line in push_notes(read()):
        print(line, file=sys.stderr, flush=True)
    with Guard() as guard:
        _dvc(root, guard, "push", "--run-cache")


def take_over(root: Path, name: str) -> None:
    """What the coordinator does once a host is done: the result from the remote's run cache, into its own dvc.lock."""
    with Guard() as guard:
        _dvc(root, guard, "repro", "--pull", name)


class Workers:
    """The hosts that serve at this moment, each given one stage at a time."""

    def __init__(self, root: Path) -> None:
        check_committed("--workers", "Commit them, which is how hosts come to know of them: git commit -a")
        if untracked := untracked_inputs():
            what, fix = f"neither in git nor in DVC: {', '.join(untracked)}", f"Track it: dvc add {untracked[0]}"
            raise PipelineError(what=what, where="--workers", fix=f"{fix}, git add, git commit")
        self._root = root
        self._commit = git("rev-parse", "HEAD").strip()
        self._free: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._restoring = threading.Lock()
        found = _serving()
        if not found:
            fix = "Start one in each clone: python -m flows.workers, with the same PREFECT_API_URL"
            raise PipelineError(what="no host serves stages", where="--workers", fix=fix)
        self._serving = set(found)
        for host in found:
            self._free.put(host)
        share(root)

    def run(self, stage: Stage, cancel: threading.Event) -> Outcome:
        """Have a free host run the stage, then take over its result."""
        begun, why = time.monotonic(), "no host is left"
        while (host := self._next(cancel)) is not None:
            state = ""
            try:
                state, why = _run_on(host, stage, self._commit, cancel)
            finally:
                if state == _GONE:
                    self._serving.discard(host)
                else:
                    self._free.put(host)
            if state != _GONE:
                return self._outcome(stage, host, state, why, begun)
        if cancel.is_set():
            return Outcome("Cancelled", message=f"{stage.name}: not begun")
        return Outcome("Failed", time.monotonic() - begun, f"stage '{stage.name}' was not begun: {why}")

    def _outcome(self, stage: Stage, host: str, state: str, message: str, begun: float) -> Outcome:
        if state == "CANCELLED":
            return Outcome("Cancelled", time.monotonic() - begun, f"{stage.name}: cancelled on {host}")
        if state != "COMPLETED":
            what = f"stage '{stage.name}' failed on {host}:\n{message}"
            return Outcome("Failed", time.monotonic() - begun, what)
        try:
            with self._restoring:
                take_over(self._root, stage.name)
                settle(self._root, stage.name)
        except PosttrainError as error:
            return Outcome("Failed", time.monotonic() - begun, str(error))
        return Outcome("Completed", time.monotonic() - begun, f"on {host}")

    def _next(self, cancel: threading.Event) -> str | None:
        while self._serving and not cancel.is_set():
            try:
                return self._free.get(timeout=_POLL)
            except queue.Empty:
                continue
        return None


def _dvc(root: Path, guard: Guard, *words: str, timeout: float | None = None) -> None:
    command = process.Command([sys.executable, "-m", "dvc", "--wait-for-lock", *words], root, os.environ, timeout)
    ended = process.run(command, write=lambda line: print(line, flush=True), cancel=threading.Event(), guard=guard)
    timed_out = ended.why is process.Why.TIMED_OUT
    if ended.code or timed_out:
        how = f"timed out after {ended.seconds:.0f} s" if timed_out else f"ended with exit code {ended.code}"
        tail = "\n".join(f"  {line}" for line in ended.tail[-_TAIL:])
        fix = "Fix it there, and run the flow again"
        raise PipelineError(what=f"dvc {words[0]} {how}:\n{tail}\n", where=str(root), fix=fix)


def _serving() -> list[str]:
    """The hosts whose process has told the server lately that it is there, and not that it ends."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowFilter, FlowFilterName
    from prefect.client.schemas.objects import DeploymentStatus

    with get_client(sync_client=True) as client:
        found = client.read_deployments(flow_filter=FlowFilter(name=FlowFilterName(any_=[FLOW])))
    return sorted(one.name for one in found if one.status == DeploymentStatus.READY and not one.paused)


def _run_on(host: str, stage: Stage, commit: str, cancel: threading.Event) -> tuple[str, str]:
    """Start the stage there and wait; a cancellation is passed on. The type and the message of its last state."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.objects import StateType
    from prefect.deployments import run_deployment
    from prefect.states import Cancelled, Cancelling

    asked = {"name": stage.name, "commit": commit, "timeout": stage.needs.timeout}
    begun: Any = run_deployment(f"{FLOW}/{host}", parameters=asked, timeout=0)
    told_at, begun_at = 0.0, time.monotonic()
    with get_client(sync_client=True) as client:
        while True:
            state = client.read_flow_run(begun.id).state
            if state is not None and state.is_final():
                return state.type.value, state.message or ""
            if cancel.wait(_POLL) and not told_at:
                client.set_flow_run_state(begun.id, Cancelling(), force=True)
                told_at = time.monotonic()
            elif told_at:
                time.sleep(_POLL)
            waiting = state is None or state.type is StateType.SCHEDULED
            if told_at and (waiting or time.monotonic() - told_at > _ENDS):
                return StateType.CANCELLED.value, "not begun" if waiting else "it does not answer"
            if waiting and time.monotonic() - begun_at > _PICKED_UP:
                client.set_flow_run_state(begun.id, Cancelled(), force=True)
                return _GONE, f"{host} has not begun it within {_PICKED_UP:.0f} s: is it still up?"


def called(root: Path) -> str:
    """A name for each clone, also where one machine has several; Prefect takes none with a slash."""
    return f"{socket.gethostname()}{str(root).replace('/', '-')}"


def main(words: Sequence[str] | None = None) -> int:
    """Serve the flow `stage` from this clone until ended."""
    parser = argparse.ArgumentParser(
        prog="python -m flows.workers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--name", help="what the host is called; default: its own name and the clone's folder")
    options = parser.parse_args(words)
    try:
        root = find_root(Path.cwd())
        os.chdir(root)
        home = server.prepare(root)
        url = server.find(home)
        if url is None:
            fix = "Set it to the coordinator's server, e.g. http://HOST:4200/api"
            raise PipelineError(what="no Prefect server is named", where="PREFECT_API_URL", fix=fix)
        server.attach(home, url)
    except PosttrainError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    os.environ.setdefault("PYTHONPATH", python_path())
    from flows.serving import serve
    from flows.stage import stage

    name = options.name or called(root)
    print(f"'{name}' takes stages in {root}", flush=True)
    serve(stage, name, limit=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
