"""Run a sweep's experiments as parallel Prefect tasks, each with `dvc exp run` in its own clone and process group."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from prefect import Task, flow
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.exceptions import TerminationSignal
from prefect.futures import PrefectFuture
from prefect.logging import get_run_logger
from prefect.states import Cancelled, Completed, Failed
from prefect.task_runners import ThreadPoolTaskRunner

from posttrain.files import write_json
from posttrain.pipeline.compare.experiments import TIMES
from posttrain.pipeline.workspace import ROOT_VARIABLE

from . import labels, notify, process, running
from .artifacts import Outcome
from .gpu_slots import GpuSlots
from .graph import Needs, Stage
from .orphan_guard import TERMINATION_STEPS, OrphanGuard
from .run import filter_repeated_failures, watch_for_cancellation
from .sweep_config import Trial
from .sweep_start import Start

_MESSAGE_LINES = 12
_DIGEST = re.compile(r"\b(?=[0-9a-f]*\d)[0-9a-f]{5,}\b")
"""A prompt's or a file's digest. Short numbers stay: HTTP 401 and HTTP 500 are not alike."""
_LOGS = 3
"""The logs that a sweep's message names for each cause."""
_SHARED = "with the same inputs. Wait until it has ended"
"""A stage's message when the lock of its checkpoints is held."""
_SHARED_POLL = 5.0
_STAGE_LINES = ("Running stage '", "Stage '", "ERROR", "error:")
"""The lines that are sent to Prefect. The experiment's log has all lines."""


class StageTimes:
    """Measures each stage's time from DVC's output and saves it at once, because DVC records no times.

    A stage that finished before a kill is later restored from the run cache and keeps its first time.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._seconds: dict[str, float] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        self._running, self._started = "", 0.0

    def __call__(self, line: str) -> None:
        if "resumes from the checkpoint" in line:
            self._running = ""  # the rest of a resumed stage is not its whole time
        if line.startswith(("Running stage '", "Stage '", "Updating lock file", "Ran experiment")):
            self._close()
            if line.startswith("Running stage '"):
                self._running, self._started = line.split("'")[1], time.monotonic()

    def _close(self) -> None:
        if self._running:
            self._seconds[self._running] = round(time.monotonic() - self._started, 2)
            write_json(self._file, self._seconds)
        self._running = ""


class Failure:
    """The stage at which an experiment failed and its error, from DVC's output."""

    def __init__(self) -> None:
        self.stage = self.error = ""

    def __call__(self, line: str) -> None:
        if line.startswith("Running stage '"):
            self.stage, self.error = line.split("'")[1], ""
        elif not self.error and line.startswith(("error:", "ERROR:")):
            self.error = line.partition(":")[2].strip()

    @property
    def text(self) -> str:
        """The stage and its error; empty if none is known."""
        return f"at '{self.stage}': {self.error}" if self.error else f"at '{self.stage}'" * bool(self.stage)

    @property
    def is_shared(self) -> bool:
        """True if another experiment is running the same stage, so that its result can be reused."""
        return _SHARED in self.error

    @property
    def key(self) -> tuple[str, str]:
        """A key that is equal for equal failures. The prompt that an error names may differ."""
        return self.stage, alike(self.error)


def alike(error: str) -> str:
    """Return an error's text without digests, which differ between equal failures."""
    return _DIGEST.sub("#", error)


class SweepRunner:
    """Runs experiments and holds the state shared by the tasks of a sweep."""

    def __init__(
        self,
        start: Start,
        pending: Sequence[Trial],
        targets: Sequence[str],
        gpus: int,
        guard: OrphanGuard,
    ) -> None:
        self.start, self.root, self.pending, self.targets, self.guard = start, start.root, pending, targets, guard
        self.stopped = ""
        """Why no more experiments are begun."""
        self._failures: set[tuple[str, str]] = set()
        self.outcomes: dict[str, Outcome] = {}
        self.cancel = threading.Event()
        self._needs = Needs(gpus=gpus)
        self._slots = GpuSlots([Stage("trial", (), self._needs, ())])
        self._started, self._lock = time.monotonic(), threading.Lock()

    def run(self, trial: Trial) -> State[Any]:
        """Run one experiment and return its state, which Prefect records."""
        try:
            outcome = self._run_once(trial)
        except Exception as error:  # noqa: BLE001  whatever fails around an experiment is a failure of it
            cause = f"{type(error).__name__}: {error}"
            outcome = Outcome("Failed", message=f"'{trial.name}' failed: {cause}", cause=cause.partition("\n")[0])
        with self._lock:
            self.outcomes[trial.name] = outcome
            self._print_progress(trial, outcome)
        if outcome.state == "Failed":
            return Failed(message=outcome.message)
        if outcome.state in ("Cancelled", "NotRun"):
            return Cancelled(name=outcome.state, message=outcome.message)
        return Completed(message=outcome.message)

    def _run_once(self, trial: Trial) -> Outcome:
        if self.cancel.is_set():
            return Outcome("Cancelled", message=f"{trial.name}: not started")
        if self.stopped:
            return Outcome("NotRun", message=f"{trial.name}: not started")
        folder = self.root / TIMES
        folder.mkdir(exist_ok=True)
        with (
            self._slots.acquire(Stage(trial.name, (), self._needs, ()), self.cancel) as gpu_env,
            (folder / f"{trial.name}.log").open("w", encoding="utf-8") as log,
        ):
            ended, failure = self._attempt(trial, gpu_env, log)
            while failure.is_shared and not self.cancel.wait(_SHARED_POLL):
                ended, failure = self._attempt(trial, gpu_env, log)
        if ended.reason is process.Reason.CANCELLED:
            return Outcome("Cancelled", ended.seconds, f"{trial.name}: cancelled after {ended.seconds:.1f} s")
        if ended.code == 0:
            return Outcome("Completed", ended.seconds)
        self.stop_if_repeated(failure)
        tail = "\n".join(f"  {line}" for line in ended.tail[-_MESSAGE_LINES:])
        message = f"'{trial.name}' failed (exit code {ended.code}):\n{tail}"
        return Outcome("Failed", ended.seconds, message, failure.text or f"exit code {ended.code}")

    def _attempt(self, trial: Trial, gpu_env: Mapping[str, str], log: TextIO) -> tuple[process.Exit, Failure]:
        """Run an experiment in a new clone and fetch it into the workspace's repository."""
        words = [sys.executable, "-m", "dvc", "--wait-for-lock", "exp", "run", "-n", trial.name, *self.targets]
        times, failure = StageTimes(self.root / TIMES / f"{trial.name}.json"), Failure()
        with self.start.cloned(trial.overrides) as clone:
            info = get_run_logger().info

            def write(line: str) -> None:
                times(line)
                failure(line.replace(str(clone), "."))
                print(line, file=log, flush=True)
                if line.startswith(_STAGE_LINES):
                    info(line)

            # Checkpoints and caches of the workspace serve all experiments.
            env = {**os.environ, "PYTHONUNBUFFERED": "1", ROOT_VARIABLE: str(self.root), **gpu_env}
            ended = process.run(process.Command(words, clone, env), write=write, cancel=self.cancel, guard=self.guard)
            if ended.reason is process.Reason.ENDED and ended.code == 0:
                self.start.take(clone, trial.name)
                return ended, Failure()
        return ended, failure

    def stop_if_repeated(self, failure: Failure) -> None:
        """Start no more experiments after the second failure of the same stage with the same error."""
        with self._lock:
            if failure.error and failure.key in self._failures and not self.stopped:
                self.stopped = f"stopped, because two experiments failed alike at '{failure.stage}': {failure.error}"
            self._failures.add(failure.key)

    def _print_progress(self, trial: Trial, outcome: Outcome) -> None:
        """Print a line for the experiment, with the estimated remaining time."""
        done, elapsed = len(self.outcomes), time.monotonic() - self._started
        left = (len(self.pending) - done) * elapsed / done
        eta = f", about {left / 60:.0f} min left" if left > 90 else f", about {left:.0f} s left" if left else ""
        count = f"[{done}/{len(self.pending)}]"
        print(f"{count} {trial.name}  {outcome.state}  {outcome.seconds:.1f} s{eta}", flush=True)


def run_sweep(name: str, runner: SweepRunner, jobs: int, warm_up: int) -> State[Any]:
    """Run the pending trials as a flow run, the first `warm_up` before the others. Return its state."""

    @flow(name=f"sweep-{name}", persist_result=False, on_failure=[notify.on_failure])
    def sweep() -> State[Any]:
        return execute(runner, jobs, warm_up)

    filter_repeated_failures()
    return sweep(return_state=True)


def execute(runner: SweepRunner, jobs: int, warm_up: int, does: str = "") -> State[Any]:
    """Run the pending trials inside the current flow run, `jobs` at a time. Return the flow run's final state.

    `does`: what the run's name says in place of the number of experiments.
    """
    labels.label(runner.root, does or f"{len(runner.pending)} experiments", ["sweep"])
    try:
        with running.recorded(runner.root), watch_for_cancellation(runner.cancel):
            _submit_and_wait(runner, jobs, warm_up)
    except KeyboardInterrupt:
        return Cancelled(message="Interrupted by SIGINT")
    if runner.cancel.is_set():
        return Cancelled(message="Cancelled from Prefect")
    if any(outcome.state == "Failed" for outcome in runner.outcomes.values()):
        return Failed(message=_failures(runner))
    return Completed(message=f"experiments that have run: {len(runner.pending)}")


def _failures(runner: SweepRunner) -> str:
    """Return why a sweep failed, for an alert: each cause once, the most frequent first, with the log to read."""
    failed = {name: outcome.cause for name, outcome in runner.outcomes.items() if outcome.state == "Failed"}
    by_cause: dict[str, list[str]] = {}
    for name, cause in failed.items():
        by_cause.setdefault(alike(cause), []).append(name)
    lines = []
    for names in sorted(by_cause.values(), key=len, reverse=True):
        cause = failed[names[0]]
        many = f"{len(names)} experiments" if len(names) > 1 else names[0]
        lines.append(f"{many} failed {cause if cause.startswith('at ') else f'({cause})'}")
        lines += [f"  {TIMES}/{name}.log" for name in names[:_LOGS]] + [f"  and {len(names) - _LOGS} more"] * (
            len(names) > _LOGS
        )
    stopped = "The others were not started, because two experiments failed alike"
    return "\n".join([*lines, *[stopped] * bool(runner.stopped)])


def _submit_and_wait(runner: SweepRunner, jobs: int, warm_up: int) -> None:
    """Submit all trials to a pool of this flow run. The flow's own pool would run all of them at once."""
    futures: list[PrefectFuture[Any]] = []
    threads: ThreadPoolTaskRunner[Any] = ThreadPoolTaskRunner(max_workers=jobs)
    with threads as pool:
        try:
            for trial in runner.pending:
                run: Task[..., State[Any]] = Task(
                    runner.run, name=trial.name, task_run_name=trial.name, cache_policy=NO_CACHE, persist_result=False
                )
                futures.append(pool.submit(run, {"trial": trial}))
                if len(futures) == warm_up:
                    for future in futures:
                        future.wait()
            for future in futures:
                future.wait()
        except (KeyboardInterrupt, SystemExit, TerminationSignal):
            runner.cancel.set()
            timeout = sum(seconds for _, seconds in TERMINATION_STEPS) + 5
            for future in futures:
                future.wait(timeout=timeout)
            raise
