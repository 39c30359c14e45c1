"""The flow: one Prefect task per stage, run by DVC in a process group of its own; DVC's words decide its state."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from httpx import TransportError
from prefect import Task, flow
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State, StateType
from prefect.exceptions import TerminationSignal
from prefect.futures import PrefectFuture
from prefect.logging import get_run_logger
from prefect.runtime import flow_run, task_run
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
from prefect.states import Cancelled, Cancelling, Completed, Failed
from prefect.task_runners import ThreadPoolTaskRunner

from flows import engines, graph, notify, process, record
from flows.graph import Stage, Where, Which
from flows.guard import STEPS, Guard
from flows.record import Outcome
from flows.slots import Slots
from flows.workers import Workers
from posttrain.errors import PosttrainError
from posttrain.settle import settle

_CANCEL_POLL = 2.0
_BUSY_POLL = 2.0
_BUSY = "is busy, it is being blocked by"
_MESSAGE_LINES = 12
_HINTS = ("To track the changes", "git add ", "To enable auto staging", "dvc config core.autostage", "Use `dvc push`")
"""DVC's advice after each stage."""
_TOLD: dict[str, Any] = {"on_failure": [notify.on_failure], "on_crashed": [notify.on_failure]}


class Crew:
    """All that the tasks of one flow run share; made inside the flow, because `serve` pickles its module by value."""

    def __init__(self, root: Path, stages: Sequence[Stage], which: Which, guard: Guard, where: Where) -> None:
        self.root, self.guard, self.which, self.where = root, guard, which, where
        self.workers = Workers(root) if where == "workers" else None
        self.stages = {stage.name: stage for stage in stages}
        self.to_run = graph.chosen(stages, which)
        self.outcomes: dict[str, Outcome] = {}
        self.cancel = threading.Event()
        here = where == "here"
        self.slots = Slots([stage for stage in stages if here and stage.name in self.to_run])

    def work(self, name: str) -> State[Any]:
        """Bring one stage up to date; the returned state is what Prefect records."""
        stage = self.stages[name]
        outcome = self._try(stage) if name in self.to_run else Outcome("Cached", message="dvc.lock is current")
        earlier = self.outcomes[name].seconds if name in self.outcomes else 0.0
        self.outcomes[name] = Outcome(outcome.state, earlier + outcome.seconds, outcome.message)
        if outcome.state == "Failed":
            if task_run.run_count <= stage.needs.retries and self.cancel.wait(stage.needs.retry_delay):
                # Here and not in Prefect, which would sleep through a cancellation.
                return Cancelled(message=f"{name}: cancelled before another try")
            return Failed(message=outcome.message)
        if outcome.state == "Cancelled":
            return Cancelled(message=outcome.message)
        return Completed(name=outcome.state, message=outcome.message, data=outcome.seconds)

    def _try(self, stage: Stage) -> Outcome:
        if self.cancel.is_set():
            return Outcome("Cancelled", message=f"{stage.name}: not begun")
        if self.workers is not None:
            return self.workers.run(stage, self.cancel)
        with self.slots.take(stage, self.cancel) as shown:
            env = {**os.environ, "PYTHONUNBUFFERED": "1", **shown}
            force = ["--force"] if self.which == "all" else []
            words = [sys.executable, "-m", "dvc", "--wait-for-lock", "repro", *force, "-s", stage.name]
            command = process.Command(words, self.root, env, stage.needs.timeout)
            words_of_dvc = Words(stage.name, get_run_logger().info)
            ended = process.run(command, write=words_of_dvc, cancel=self.cancel, guard=self.guard)
            while words_of_dvc.busy and not self.cancel.is_set():
                words_of_dvc.wait()
                self.cancel.wait(_BUSY_POLL)
                ended = process.run(command, write=words_of_dvc, cancel=self.cancel, guard=self.guard)
        if ended.why is process.Why.CANCELLED:
            return Outcome("Cancelled", ended.seconds, f"{stage.name}: cancelled after {ended.seconds:.1f} s")
        if ended.why is process.Why.ENDED and ended.code == 0:
            try:
                settle(self.root, stage.name)
            except PosttrainError as error:
                return Outcome("Failed", ended.seconds, str(error))
            return Outcome(words_of_dvc.state, ended.seconds)
        how = f"exit code {ended.code}" if ended.why is process.Why.ENDED else f"timed out after {ended.seconds:.0f} s"
        tail = "\n".join(f"  {line}" for line in ended.tail[-_MESSAGE_LINES:])
        return Outcome("Failed", ended.seconds, f"stage '{stage.name}' failed ({how}):\n{tail}")


class Words:
    """Passes lines on and reads in them what DVC did; the first such line is DVC's, later ones may be the stage's.

    `busy` is set while another DVC in this folder, outside the flow, has the stage's files.
    """

    def __init__(self, name: str, write: Callable[[str], None]) -> None:
        self._write, self._said, self._waits, self.busy = write, "", False, False
        self._states = {
            f"Running stage '{name}'": "Completed",
            f"Stage '{name}' is cached - skipping run": "RunCached",
            f"Stage '{name}' didn't change": "Cached",
            f"'{name}' didn't change": "Cached",
        }

    @property
    def state(self) -> str:
        return self._said or "Completed"

    def __call__(self, line: str) -> None:
        if not self._said:
            self._said = next((state for words, state in self._states.items() if line.startswith(words)), "")
        self.busy = self.busy or (not self._said and _BUSY in line)
        if (self._said or not self._waits) and not line.lstrip().startswith(_HINTS):
            self._write(line)

    def wait(self) -> None:
        """Told before DVC is asked again: its refusals, which would repeat, are not passed on from here."""
        if not self._waits:
            self._write("Waiting until it has ended")
        self._waits, self.busy = True, False


class Terse(logging.Filter):
    """Cuts what Prefect's engine repeats of a failure: the lines themselves and the end of the flow show it already."""

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if text.startswith("Task run failed with state"):
            # With retries left, how it goes on is news; otherwise nothing is.
            rest = text.rpartition(" - ")[2]
            record.msg, record.args, record.exc_info = rest, (), None
            return rest.startswith("Retry")
        if text.startswith("Finished in state Failed("):
            record.msg, record.args = "Finished in state Failed", ()
        return True


def quiet() -> None:
    """Keep Prefect's engine from repeating every failure."""
    for name in ("prefect.task_runs", "prefect.flow_runs"):
        logging.getLogger(name).addFilter(Terse())


def recorded(root: Path, stages: Sequence[Stage], which: Which, where: Where) -> State[Any]:
    """Run these stages, which DVC has just been asked about, as a flow run, and return its final state."""

    @flow(name="pipeline", task_runner=engines.task_runner(where), persist_result=False, **_TOLD)
    def pipeline() -> State[Any]:
        return execute(root, stages, which, where)

    # The thread that beats sleeps through up to a second at the end, which is long where there is nothing to run.
    quick = {PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None} if not graph.chosen(stages, which) else {}
    quiet()
    with temporary_settings(quick):
        return pipeline(return_state=True)


@flow(name="pipeline", task_runner=ThreadPoolTaskRunner(), persist_result=False, **_TOLD)  # type: ignore[arg-type]
def pipeline(targets: list[str] | None = None) -> State[Any]:
    """The DAG of the folder that this runs in; asks DVC itself, as a schedule or a worker needs it."""
    # Its parameters are of built-in types: a worker loads this file by its path, and there no other name is resolved.
    root = graph.find_root(Path.cwd())
    return execute(root, graph.Reading(root, targets or []).stages, "stale", "here")


def execute(root: Path, stages: Sequence[Stage], which: Which, where: Where) -> State[Any]:
    """Run the stages inside the current flow run; returns the state that the flow run ends in."""
    engines.listen_again()
    with Guard() as guard:
        try:
            crew = Crew(root, stages, which, guard, where)
        except PosttrainError as error:
            return Failed(message=str(error))
        try:
            with cancelled_elsewhere(crew.cancel):
                _submit_and_wait(crew)
        except KeyboardInterrupt:
            return Cancelled(message="Interrupted by SIGINT")
        finally:
            print(record.table(stages, crew.outcomes), flush=True)
        if crew.cancel.is_set():
            return Cancelled(message="Cancelled from Prefect")
        record.publish(root, stages, crew.outcomes)
        failed = [outcome.message for outcome in crew.outcomes.values() if outcome.state == "Failed"]
        if failed:
            idle = [stage.name for stage in stages if stage.name not in crew.outcomes]
            rest = f"\nnot run: {', '.join(idle)}" if idle else ""
            return Failed(message="\n".join(failed) + rest)
        return Completed(message=f"{len(stages)} stages are up to date")


def _submit_and_wait(crew: Crew) -> None:
    """Submit every stage behind its upstream; on any interruption first end the running ones."""
    futures: dict[str, PrefectFuture[Any]] = {}
    try:
        for stage in crew.stages.values():
            if crew.where in engines.ENGINES and stage.name not in crew.to_run:
                _as_task(stage, crew.work)(stage.name, return_state=True)
                continue
            upstream = [futures[name] for name in stage.upstream if name in futures]
            futures[stage.name] = _submitted(crew, stage, upstream)
        for future in futures.values():
            future.wait()
    except (KeyboardInterrupt, SystemExit, TerminationSignal):
        crew.cancel.set()
        if crew.where in engines.ENGINES:
            with get_client(sync_client=True) as client:
                client.set_flow_run_state(flow_run.id, Cancelling(), force=True)
        patience = sum(seconds for _, seconds in STEPS) + 5
        for future in futures.values():
            future.wait(timeout=patience)
        raise
    finally:
        if crew.where in engines.ENGINES:
            crew.outcomes |= {name: outcome for name, future in futures.items() if (outcome := _outcome(future))}


def _submitted(crew: Crew, stage: Stage, upstream: list[PrefectFuture[Any]]) -> PrefectFuture[Any]:
    if crew.where not in engines.ENGINES:
        return _as_task(stage, crew.work).submit(stage.name, wait_for=upstream)
    with engines.asking(crew.where, stage):
        # What it comes after is an argument, which makes it a dependency to the engine too: a task that only waits
        # would hold a place.
        return _as_task(stage, bring_up_to_date).submit(str(crew.root), graph.to_json(stage), crew.which, upstream)


def bring_up_to_date(root: str, data: dict[str, Any], which: Which, after: list[Any]) -> State[Any]:
    """A stage in a process of Ray or Dask, which has its own guard and hears of a cancellation from the server."""
    del after
    stage = graph.from_json(data)
    free = replace(stage, needs=stage.needs.model_copy(update={"gpus": 0}))  # the engine has handed them out
    with Guard() as guard:
        crew = Crew(Path(root), [free], which, guard, "here")
        crew.to_run = {free.name}
        with cancelled_elsewhere(crew.cancel):
            return crew.work(free.name)


def _outcome(future: PrefectFuture[Any]) -> Outcome | None:
    """What became of a stage that ran in another process; None of one that never began."""
    state = future.state
    if not state.is_final():
        return None
    kind = "Failed" if state.is_failed() or state.is_crashed() else "Cancelled" if state.is_cancelled() else state.name
    seconds = getattr(state.data, "result", 0.0)  # what `Crew.work` gave, where the stage was completed
    return Outcome(kind or "Completed", seconds if isinstance(seconds, float) else 0.0, state.message or "")


def _as_task(stage: Stage, work: Callable[..., State[Any]]) -> Task[..., State[Any]]:
    # DVC is the cache; Prefect's own would answer from another notion of what is done.
    return Task(
        work,
        name=stage.name,
        task_run_name=stage.name,
        retries=stage.needs.retries,
        cache_policy=NO_CACHE,
        persist_result=False,
    )


@contextmanager
def cancelled_elsewhere(cancel: threading.Event) -> Iterator[None]:
    """Set `cancel` when the run is cancelled in Prefect's pages: nobody else tells a flow that has no worker."""
    over, run_id = threading.Event(), flow_run.id

    def watch() -> None:
        with get_client(sync_client=True) as client:
            while not over.wait(_CANCEL_POLL):
                with suppress(TransportError):  # a server that is gone cancels nothing; it may come back
                    state = client.read_flow_run(run_id).state
                    if state is not None and state.type in (StateType.CANCELLING, StateType.CANCELLED):
                        cancel.set()
                        return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
