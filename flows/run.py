"""The flow: one Prefect task per stage. DVC runs the stage in its own process group, and its output gives the state."""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

from httpx import HTTPError
from prefect import Task, flow
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State, StateType
from prefect.exceptions import TerminationSignal
from prefect.futures import PrefectFuture
from prefect.logging import get_run_logger
from prefect.runtime import flow_run, task_run
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
from prefect.states import Cancelled, Cancelling, Completed, Failed

from posttrain.errors import PosttrainError
from posttrain.measure.progress import progress_path, progress_text, read_progress
from posttrain.measure.stage_log import log_path
from posttrain.pipeline.lock.lock_check import check_and_sync
from posttrain.pipeline.workspace import failure_path

from . import artifacts, graph, labels, notify, process, running, task_runners
from .artifacts import Outcome
from .gpu_slots import GpuSlots
from .graph import Executor, Selection, Stage
from .hosts import Workers
from .orphan_guard import TERMINATION_STEPS, OrphanGuard

_CANCEL_POLL = 2.0
_BUSY_POLL = 2.0
_BUSY = "is busy, it is being blocked by"
_MESSAGE_LINES = 12
_DVC_HINTS = (
    "To track the changes",
    "git add ",
    "To enable auto staging",
    "dvc config core.autostage",
    "Use `dvc push`",
)
"""DVC's advice after each stage."""
_ERROR = re.compile(r"error:|ERROR:|Traceback |[\w.]*(Error|Exception)\b")
"""Prefixes of lines that report an error."""
_EXITED = re.compile(r"exited with (-?\d+)")
HOOKS: dict[str, Any] = {"on_failure": [notify.on_failure], "on_crashed": [notify.on_failure]}


class StageRunner:
    """Runs stages and holds the state shared by the tasks of a flow run.

    It is created inside the flow, because `serve` pickles this module by value.
    """

    def __init__(
        self, root: Path, stages: Sequence[Stage], selection: Selection, guard: OrphanGuard, executor: Executor
    ) -> None:
        self.root, self.guard, self.selection, self.executor = root, guard, selection, executor
        self.workers = Workers(root) if executor == "workers" else None
        self.stages = {stage.name: stage for stage in stages}
        self.to_run = graph.select(stages, selection)
        self.outcomes: dict[str, Outcome] = {}
        self.cancel = threading.Event()
        local = executor == "local"
        self.slots = GpuSlots([stage for stage in stages if local and stage.name in self.to_run])

    def run(self, name: str) -> State[Any]:
        """Bring one stage up to date and return its state, which Prefect records."""
        stage = self.stages[name]
        try:
            outcome = self._run_once(stage) if name in self.to_run else Outcome("Cached", message="dvc.lock is current")
        except Exception as error:  # noqa: BLE001  whatever fails around a stage is a failure of the stage
            outcome = Outcome("Failed", message=f"{name}: {type(error).__name__}: {error}")
        earlier = self.outcomes[name].seconds if name in self.outcomes else 0.0
        self.outcomes[name] = Outcome(outcome.state, earlier + outcome.seconds, outcome.message)
        if outcome.state == "Failed":
            if task_run.run_count <= stage.needs.retries and self.cancel.wait(stage.needs.retry_delay):
                # Prefect's own delay would ignore a cancellation.
                return Cancelled(message=f"{name}: cancelled before a retry")
            return Failed(message=outcome.message)
        if outcome.state == "Cancelled":
            return Cancelled(message=outcome.message)
        return Completed(name=outcome.state, message=outcome.message, data=outcome.seconds)

    def _run_once(self, stage: Stage) -> Outcome:
        if self.cancel.is_set():
            return Outcome("Cancelled", message=f"{stage.name}: not started")
        if self.workers is not None:
            return self.workers.run(stage, self.cancel)
        with self.slots.acquire(stage, self.cancel) as gpu_env:
            env = {**os.environ, "PYTHONUNBUFFERED": "1", **gpu_env}
            force = ["--force"] if self.selection == "all" else []
            words = [sys.executable, "-m", "dvc", "--wait-for-lock", "repro", *force, "-s", stage.name]
            command = process.Command(words, self.root, env, stage.needs.timeout)
            progress = ShownProgress(self.root / progress_path(stage.name), stage.name)
            begun = time.time()
            parser = DvcOutputParser(stage.name, _log_line)
            run = partial(process.run, command, write=parser, cancel=self.cancel, guard=self.guard, poll=progress)
            ended = run()
            while parser.busy and not self.cancel.is_set():
                parser.start_waiting()
                self.cancel.wait(_BUSY_POLL)
                ended = run()
            progress.close()
        if ended.reason is process.Reason.CANCELLED:
            return Outcome("Cancelled", ended.seconds, f"{stage.name}: cancelled after {ended.seconds:.1f} s")
        if ended.reason is process.Reason.ENDED and ended.code == 0:
            try:
                check_and_sync(self.root, stage.name)
            except PosttrainError as error:
                return Outcome("Failed", ended.seconds, str(error))
            return Outcome(parser.state, ended.seconds)
        how = (
            f"exit code {parser.code or ended.code}"
            if ended.reason is process.Reason.ENDED
            else f"timed out after {ended.seconds:.0f} s"
        )
        return Outcome("Failed", ended.seconds, _why_failed(self.root, stage.name, begun, ended.tail, how))


def _why_failed(root: Path, stage: str, begun: float, tail: Sequence[str], how: str) -> str:
    """Return the reason first: the error that the stage wrote in this run, or the end of its output; then its log."""
    file, log = root / failure_path(stage), root / log_path(stage)
    with suppress(OSError):
        if file.stat().st_mtime >= begun:
            first, *more = file.read_text(encoding="utf-8").strip().splitlines()
            lines = [f"{stage} failed: {first}", *(f"  {line}" for line in more), f"  {how}; log: {log}"]
            return "\n".join(lines)
    lines = [line for line in tail[-_MESSAGE_LINES:] if line.strip()]
    reason = next((line for line in reversed(lines) if not line.startswith("ERROR: failed to reproduce")), how)
    more = [f"  {line}" for line in lines]
    said = f"{stage} failed: {how}" if reason == how else f"{stage} failed: {reason.strip()} ({how})"
    return "\n".join([said, *(more if len(more) > 1 else [])])


def _log_line(line: str) -> None:
    """Log a line of a stage's output. Errors are logged as errors."""
    log = get_run_logger()
    (log.error if _ERROR.match(line) else log.info)(line)


class ShownProgress:
    """Shows a stage's progress file as a progress artifact of its task."""

    def __init__(self, file: Path, name: str) -> None:
        self._file, self._name, self._begun = file, name, time.time()
        self._artifact: UUID | None = None
        self._last, self._looked = "", 0.0

    def close(self) -> None:
        """Show the stage's last progress."""
        self._looked = 0.0
        self()

    def __call__(self) -> None:
        """Read the file, at most once a second."""
        if time.monotonic() - self._looked < 1:
            return
        self._looked = time.monotonic()
        state = read_progress(self._file, self._begun)
        if state is None or (line := f"{self._name}: {progress_text(state)}") == self._last:
            return
        self._last, share = line, min(100.0, 100.0 * state["step"] / max(state["steps"], 1))
        with suppress(HTTPError):  # a server that does not answer stops no stage
            if self._artifact is None:
                created: Any = create_progress_artifact(share, description=line)
                self._artifact = created
            else:
                update_progress_artifact(self._artifact, share, description=line)


class DvcOutputParser:
    """Passes lines on and reads the stage's state from DVC's first line, because later lines may come from the stage.

    `busy` is set while another DVC process in this folder, outside the flow, uses the stage's files.
    """

    def __init__(self, name: str, write: Callable[[str], None]) -> None:
        self._write, self._state, self._waiting, self.busy = write, "", False, False
        self.code = ""
        """The exit code of the stage's command, where it failed; DVC's own is 255 then."""
        self._states = {
            f"Running stage '{name}'": "Completed",
            f"Stage '{name}' is cached - skipping run": "RunCached",
            f"Stage '{name}' didn't change": "Cached",
            f"'{name}' didn't change": "Cached",
        }

    @property
    def state(self) -> str:
        return self._state or "Completed"

    def __call__(self, line: str) -> None:
        if not self._state:
            self._state = next((state for prefix, state in self._states.items() if line.startswith(prefix)), "")
        if line.startswith("ERROR: failed to reproduce") and (ended := _EXITED.search(line)):
            self.code = ended[1]
        busy = not self._state and _BUSY in line
        if busy and not self.busy and not self._waiting:
            self._write("Another DVC command is using this stage's files. Waiting until it has ended")
        self.busy = self.busy or busy
        refused = self.busy or (self._waiting and not self._state)  # DVC's advice here is to remove its locks
        if not refused and not line.lstrip().startswith(_DVC_HINTS):
            self._write(line)

    def start_waiting(self) -> None:
        """Suppress repeated refusals by DVC from now on. Call this before DVC runs again."""
        self._waiting, self.busy = True, False


class RepeatedFailureFilter(logging.Filter):
    """Drops Prefect's repeated failure messages. The stage's output and the flow's end already show the failure."""

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if text.startswith("Task run failed with state"):
            # Only the note about a retry says something new.
            rest = text.rpartition(" - ")[2]
            record.msg, record.args, record.exc_info = rest, (), None
            return rest.startswith("Retry")
        if text.startswith("Finished in state NotReady("):  # a stage behind a failed one, which the flow's end names
            return False
        if text.startswith("Finished in state Failed("):
            record.msg, record.args = "Finished in state Failed", ()
        return True


def filter_repeated_failures() -> None:
    """Keep Prefect's engine from repeating every failure."""
    for name in ("prefect.task_runs", "prefect.flow_runs"):
        logging.getLogger(name).addFilter(RepeatedFailureFilter())


def run_pipeline(
    root: Path, stages: Sequence[Stage], targets: list[str], runs: Selection, where: Executor
) -> State[Any]:
    """Run these stages as a flow run. Return its final state. DVC must just have reported them."""

    @flow(name="pipeline", task_runner=task_runners.task_runner(where), persist_result=False, **HOOKS)
    def pipeline(targets: list[str], selection: str, executor: str) -> State[Any]:
        del selection, executor  # Prefect shows them
        return execute(root, stages, targets, runs, where)

    # The heartbeat thread delays the end by up to a second, which is long where there is nothing to run.
    no_heartbeat = {PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None} if not graph.select(stages, runs) else {}
    filter_repeated_failures()
    with temporary_settings(no_heartbeat):
        return pipeline(targets, runs, where, return_state=True)


def execute(
    root: Path, stages: Sequence[Stage], targets: Sequence[str], selection: Selection, executor: Executor
) -> State[Any]:
    """Run the stages inside the current flow run. Return the flow run's final state."""
    task_runners.restore_sigterm()
    labels.label(root, " ".join(targets) or "all")
    with running.recorded(root), OrphanGuard() as guard:
        try:
            runner = StageRunner(root, stages, selection, guard, executor)
        except PosttrainError as error:
            return Failed(message=str(error))
        try:
            with watch_for_cancellation(runner.cancel):
                _submit_and_wait(runner)
        except KeyboardInterrupt:
            return Cancelled(message="Interrupted by SIGINT")
        finally:
            print(artifacts.table(stages, runner.outcomes), flush=True)
        if runner.cancel.is_set():
            return Cancelled(message="Cancelled from Prefect")
        artifacts.publish(root, stages, runner.outcomes)
        failed = [outcome.message for outcome in runner.outcomes.values() if outcome.state == "Failed"]
        if failed:
            not_run = [stage.name for stage in stages if stage.name not in runner.outcomes]
            note = f"\nnot run: {', '.join(not_run)}" if not_run else ""
            return Failed(message="\n".join(failed) + note)
        return Completed(message=f"{len(stages)} stages are up to date")


def _submit_and_wait(runner: StageRunner) -> None:
    """Submit every stage after its upstream, and wait. On an interruption, end the running stages first."""
    futures: dict[str, PrefectFuture[Any]] = {}
    try:
        for stage in runner.stages.values():
            if runner.executor in task_runners.CLUSTER_RUNNERS and stage.name not in runner.to_run:
                _as_task(stage, runner.run)(stage.name, return_state=True)
                continue
            upstream = [futures[name] for name in stage.upstream if name in futures]
            futures[stage.name] = _submitted(runner, stage, upstream)
        for future in futures.values():
            future.wait()
        _end_what_was_not_run(futures)
    except (KeyboardInterrupt, SystemExit, TerminationSignal) as interrupt:
        process.INTERRUPTED.append(signal.SIGINT if isinstance(interrupt, KeyboardInterrupt) else signal.SIGTERM)
        runner.cancel.set()
        if runner.executor in task_runners.CLUSTER_RUNNERS:
            with get_client(sync_client=True) as client:
                client.set_flow_run_state(flow_run.id, Cancelling(), force=True)
        timeout = sum(seconds for _, seconds in TERMINATION_STEPS) + 5
        for future in futures.values():
            future.wait(timeout=timeout)
        raise
    finally:
        if runner.executor in task_runners.CLUSTER_RUNNERS:
            runner.outcomes |= {name: outcome for name, future in futures.items() if (outcome := _outcome(future))}


def _end_what_was_not_run(futures: Mapping[str, PrefectFuture[Any]]) -> None:
    """Give stages behind a failed one a final state. Otherwise Prefect shows them as waiting forever."""
    left = [(name, future.task_run_id) for name, future in futures.items() if not future.state.is_final()]
    if left:
        with get_client(sync_client=True) as client:
            for name, task_run_id in left:
                state: State[Any] = Cancelled(name="NotRun", message=f"{name}: a stage before it failed")
                client.set_task_run_state(task_run_id, state, force=True)
                # A busy server may not have the name yet, and rejects it later, as the event that has it is older.
                client.set_task_run_name(task_run_id, name)


def _submitted(runner: StageRunner, stage: Stage, upstream: list[PrefectFuture[Any]]) -> PrefectFuture[Any]:
    if runner.executor not in task_runners.CLUSTER_RUNNERS:
        return _as_task(stage, runner.run).submit(stage.name, wait_for=upstream)
    with task_runners.gpu_resources(runner.executor, stage):
        # The upstream is an argument, and so a dependency for Ray and Dask too: a task that only waits would occupy
        # a worker.
        return _as_task(stage, run_on_cluster).submit(
            str(runner.root), graph.to_json(stage), runner.selection, upstream
        )


def run_on_cluster(root: str, data: dict[str, Any], selection: Selection, upstream: list[Any]) -> State[Any]:
    """Run a stage in a Ray or Dask process with its own guard. Cancellations come from Prefect's server."""
    del upstream
    stage = graph.from_json(data)
    stage = replace(stage, needs=stage.needs.model_copy(update={"gpus": 0}))  # Ray or Dask has assigned them
    with OrphanGuard() as guard:
        runner = StageRunner(Path(root), [stage], selection, guard, "local")
        runner.to_run = {stage.name}
        with watch_for_cancellation(runner.cancel):
            return runner.run(stage.name)


def _outcome(future: PrefectFuture[Any]) -> Outcome | None:
    """Return the outcome of a stage in another process; None if it never started."""
    state = future.state
    if not state.is_final():
        return None
    kind = "Failed" if state.is_failed() or state.is_crashed() else "Cancelled" if state.is_cancelled() else state.name
    seconds = getattr(state.data, "result", 0.0)  # from `StageRunner.run`, if the stage was completed
    return Outcome(kind or "Completed", seconds if isinstance(seconds, float) else 0.0, state.message or "")


def _as_task(stage: Stage, function: Callable[..., State[Any]]) -> Task[..., State[Any]]:
    # Without Prefect's cache: DVC alone decides what is done.
    return Task(
        function,
        name=stage.name,
        task_run_name=stage.name,
        retries=stage.needs.retries,
        cache_policy=NO_CACHE,
        persist_result=False,
    )


@contextmanager
def watch_for_cancellation(cancel: threading.Event) -> Iterator[None]:
    """Set `cancel` when the run is cancelled in Prefect's UI. Prefect does not notify a flow without a worker."""
    stop, run_id = threading.Event(), flow_run.id

    def watch() -> None:
        with get_client(sync_client=True) as client:
            while not stop.wait(_CANCEL_POLL):
                with suppress(HTTPError):  # the server may answer again later
                    state = client.read_flow_run(run_id).state
                    if state is not None and state.type in (StateType.CANCELLING, StateType.CANCELLED):
                        cancel.set()
                        return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        stop.set()
