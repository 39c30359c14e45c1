"""Runs a sweep's experiments as Prefect tasks, several at once, each by `dvc exp run --temp` in its own group."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from prefect import Task, flow, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.exceptions import TerminationSignal
from prefect.futures import PrefectFuture
from prefect.logging import get_run_logger
from prefect.states import Cancelled, Completed, Failed
from prefect.task_runners import ThreadPoolTaskRunner

from flows import notify, process
from flows.graph import Needs, Stage
from flows.guard import STEPS, Guard
from flows.plan import Trial
from flows.record import Outcome
from flows.run import cancelled_elsewhere, quiet
from flows.slots import Slots
from posttrain.compare.experiments import TIMES
from posttrain.workspace import write_json

_MESSAGE_LINES = 12


class StageTimes:
    """Reads in DVC's lines how long each stage took and writes it down at once; DVC itself keeps no times.

    A stage that ended before a kill comes from the run cache later, and keeps the time that was seen then.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._seconds: dict[str, float] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        self._running, self._begun = "", 0.0

    def __call__(self, line: str) -> None:
        if "resumes from the checkpoint" in line:
            self._running = ""  # what is left of a stage is not its time
        if line.startswith(("Running stage '", "Stage '", "Updating lock file", "Ran experiment")):
            self._close()
            if line.startswith("Running stage '"):
                self._running, self._begun = line.split("'")[1], time.monotonic()

    def _close(self) -> None:
        if self._running:
            self._seconds[self._running] = round(time.monotonic() - self._begun, 2)
            write_json(self._file, self._seconds)
        self._running = ""


class Bench:
    """All that the tasks of one sweep share."""

    def __init__(
        self,
        root: Path,
        pending: Sequence[Trial],
        targets: Sequence[str],
        untracked: Sequence[str],
        gpus: int,
        guard: Guard,
    ) -> None:
        self.root, self.pending, self.targets, self.untracked, self.guard = root, pending, targets, untracked, guard
        self.outcomes: dict[str, Outcome] = {}
        self.cancel = threading.Event()
        self._needs = Needs(gpus=gpus)
        self._slots = Slots([Stage("trial", (), self._needs, ())])
        self._began, self._lock = time.monotonic(), threading.Lock()

    def work(self, trial: Trial) -> State[Any]:
        """Run one experiment; the returned state is what Prefect records."""
        outcome = self._try(trial)
        with self._lock:
            self.outcomes[trial.name] = outcome
            self._say(trial, outcome)
        if outcome.state == "Failed":
            return Failed(message=outcome.message)
        if outcome.state == "Cancelled":
            return Cancelled(message=outcome.message)
        return Completed(message=outcome.message)

    def _try(self, trial: Trial) -> Outcome:
        if self.cancel.is_set():
            return Outcome("Cancelled", message=f"{trial.name}: not begun")
        words = [sys.executable, "-m", "dvc", "--wait-for-lock", "exp", "run", "--temp", "-n", trial.name]
        words += [*trial.words(), *(f"--copy-paths={path}" for path in self.untracked), *self.targets]
        folder = self.root / TIMES
        folder.mkdir(exist_ok=True)
        times = StageTimes(folder / f"{trial.name}.json")
        with (
            self._slots.take(Stage(trial.name, (), self._needs, ()), self.cancel) as shown,
            (folder / f"{trial.name}.log").open("w", encoding="utf-8") as log,
        ):
            env = {**os.environ, "PYTHONUNBUFFERED": "1", **shown}
            write = _all(times, lambda line: print(line, file=log, flush=True), _told(get_run_logger().info))
            ended = process.run(
                process.Command(words, self.root, env), write=write, cancel=self.cancel, guard=self.guard
            )
        if ended.why is process.Why.CANCELLED:
            return Outcome("Cancelled", ended.seconds, f"{trial.name}: cancelled after {ended.seconds:.1f} s")
        if ended.code == 0:
            return Outcome("Completed", ended.seconds)
        tail = "\n".join(f"  {line}" for line in ended.tail[-_MESSAGE_LINES:])
        return Outcome("Failed", ended.seconds, f"'{trial.name}' failed (exit code {ended.code}):\n{tail}")

    def _say(self, trial: Trial, outcome: Outcome) -> None:
        """One line per experiment, with how long the rest will take."""
        done, took = len(self.outcomes), time.monotonic() - self._began
        left = (len(self.pending) - done) * took / done
        rest = f", about {left / 60:.0f} min left" if left > 90 else f", about {left:.0f} s left" if left else ""
        print(
            f"[{done}/{len(self.pending)}] {trial.name}  {outcome.state}  {outcome.seconds:.1f} s{rest}",
            flush=True,
        )


def recorded(name: str, bench: Bench, jobs: int, warm_up: int) -> State[Any]:
    """Run the pending trials as a flow run, the first `warm_up` of them before all others, and return its state."""
    runner: Any = ThreadPoolTaskRunner(max_workers=jobs)

    @flow(name=f"sweep-{name}", task_runner=runner, persist_result=False, on_failure=[notify.on_failure])
    def sweep() -> State[Any]:
        try:
            with cancelled_elsewhere(bench.cancel):
                _submit_and_wait(bench, warm_up)
        except KeyboardInterrupt:
            return Cancelled(message="Interrupted by SIGINT")
        if bench.cancel.is_set():
            return Cancelled(message="Cancelled from Prefect")
        failed = [outcome.message for outcome in bench.outcomes.values() if outcome.state == "Failed"]
        if failed:
            return Failed(message="\n".join(failed))
        return Completed(message=f"{len(bench.pending)} experiments were run")

    quiet()
    return sweep(return_state=True)


def _submit_and_wait(bench: Bench, warm_up: int) -> None:
    futures: list[PrefectFuture[Any]] = []
    try:
        for nth, trial in enumerate(bench.pending):
            futures.append(_as_task(bench, trial).submit(return_state=False))
            if nth + 1 == warm_up:
                for future in futures:
                    future.wait()
        for future in futures:
            future.wait()
    except (KeyboardInterrupt, SystemExit, TerminationSignal):
        bench.cancel.set()
        patience = sum(seconds for _, seconds in STEPS) + 5
        for future in futures:
            future.wait(timeout=patience)
        raise


def _as_task(bench: Bench, trial: Trial) -> Task[[], State[Any]]:
    @task(name=trial.name, task_run_name=trial.name, cache_policy=NO_CACHE, persist_result=False)
    def work() -> State[Any]:
        return bench.work(trial)

    return work


def _all(*writers: Callable[[str], None]) -> Callable[[str], None]:
    def write(line: str) -> None:
        for one in writers:
            one(line)

    return write


def _told(write: Callable[[str], None]) -> Callable[[str], None]:
    """Only which stages run; the rest is in the experiment's log."""

    def tell(line: str) -> None:
        if line.startswith(("Running stage '", "Stage '", "ERROR", "error:")):
            write(line)

    return tell
