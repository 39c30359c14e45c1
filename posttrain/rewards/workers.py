"""Worker processes that score rollouts or run tasks: one that takes too long or dies is killed and replaced."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import select
import signal
import subprocess
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, TypeVar

from posttrain import errors
from posttrain.errors import RewardError
from posttrain.params.params import Params
from posttrain.rewards import worker
from posttrain.rewards.reward import Term
from posttrain.rollout import Rollout, Score
from posttrain.workspace import library_command, library_environment

J = TypeVar("J")
R = TypeVar("R")
START_SECONDS = 120.0
"""For the imports of a worker process."""
TRIES = 2
"""Processes that may die over the same rollouts."""
GRACE = 5.0
"""Seconds beyond its own time limit that a process of an `async` function has."""


class DiedError(Exception):
    """A worker process ended before it answered."""


class TooSlowError(Exception):
    """A worker process did not answer in time."""


class Process:
    """One worker process."""

    def __init__(self, setup: dict[str, Any]) -> None:
        self._process = subprocess.Popen(
            library_command(worker.__name__),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=library_environment(),
            start_new_session=True,  # so that it can be killed with all that it started
        )
        self._buffer = b""
        self.kill = weakref.finalize(self, _kill, self._process)
        try:
            answer = self.ask(setup, START_SECONDS)
        except (DiedError, TooSlowError) as error:
            self.kill()
            what = f"its worker process did not start ({error})"
            fix = "Read what it printed above; `posttrain check` imports the same modules"
            raise RewardError(what=what, where=str(setup["label"]), fix=fix) from error
        if "error" in answer:
            kind, what, where, fix = answer["error"]
            raise getattr(errors, kind)(what=what, where=where, fix=fix)

    def ask(self, request: Any, seconds: float) -> dict[str, Any]:
        """The answer to a request; raises if the process dies or takes longer."""
        deadline = time.monotonic() + seconds
        pipe = self._process.stdin
        assert pipe is not None
        try:
            pipe.write(json.dumps(request).encode() + b"\n")
            pipe.flush()
        except BrokenPipeError:
            raise DiedError(self._end()) from None
        answer: dict[str, Any] = json.loads(self._line(deadline))
        return answer

    def _line(self, deadline: float) -> bytes:
        pipe = self._process.stdout
        assert pipe is not None
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([pipe], [], [], max(deadline - time.monotonic(), 0))
            if not ready:
                raise TooSlowError("it did not answer in time")
            part = os.read(pipe.fileno(), 1 << 20)
            if not part:
                raise DiedError(self._end())
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _end(self) -> str:
        code = self._process.wait()
        return f"killed by signal {-code}" if code < 0 else f"exit status {code}"


class Pool:
    """Worker processes of the same setup; one that takes too long or dies is killed and replaced.

    Example: `Pool({"task": "my_tool:task", "label": "task 'my_tool:task'"}, 2).ask(request, seconds=10.0)`
    """

    def __init__(self, setup: dict[str, Any], size: int) -> None:
        self._setup = setup
        # Kept: a process ends with the thread that started it (PR_SET_PDEATHSIG).
        self._threads = ThreadPoolExecutor(size)
        self._idle: SimpleQueue[Process | None] = SimpleQueue()
        for _ in range(size):
            self._idle.put(None)  # a process that is not started yet

    def map(self, function: Callable[[J], R], jobs: Iterable[J]) -> list[R]:
        """The results of a function that may call `ask`, as many jobs at a time as there are processes."""
        return list(self._threads.map(function, jobs))

    def ask(self, request: Any, seconds: float) -> dict[str, Any]:
        """The answer of an idle process; a process that dies gets a successor, for as many tries as it has."""
        for tries in range(1, TRIES + 1):
            process = self._idle.get()
            try:
                process = process or Process(self._setup)
                return process.ask(request, seconds)
            except TooSlowError:
                process = _killed(process)
                raise
            except DiedError as error:
                process = _killed(process)
                if tries == TRIES:
                    raise DiedError(f"its worker process died {TRIES} times ({error})") from error
            finally:
                self._idle.put(process)
        raise AssertionError("the last try returns or raises")


class Workers:
    """Scores rollouts in processes of their own.

    Example: `Workers("my_rewards:slow", term, options, "online.runs.grpo")(rollouts)`
    """

    def __init__(self, name: str, term: Term, options: Params, where: str) -> None:
        self._term = term
        setup = {
            "label": f"reward '{name}'",
            "name": name,
            "options": options.model_dump(mode="json", exclude_unset=True),
            "where": where,
            "timeout": term.timeout,
            "concurrency": term.concurrency,
        }
        self._async = term.reward.each is not None and inspect.iscoroutinefunction(term.reward.each)
        self._pool = Pool(setup, term.workers)

    def __call__(self, rollouts: Sequence[Rollout]) -> list[Score]:
        """A score of each rollout, in their order."""
        return [score for scores in self._pool.map(self._score, self._jobs(list(rollouts))) for score in scores]

    def _jobs(self, rollouts: list[Rollout]) -> list[list[Rollout]]:
        """What one call gets: one rollout, several for an `async` function, or all for a function of all."""
        if self._term.reward.each is None:
            return [rollouts] if rollouts else []
        size = self._term.concurrency if self._async else 1
        return [rollouts[start : start + size] for start in range(0, len(rollouts), size)]

    def _score(self, job: list[Rollout]) -> list[Score]:
        """The scores of one call."""
        try:
            answer = self._pool.ask([worker.rollout_to(one) for one in job], self._seconds(job))
            return [Score(*one) for one in answer["scores"]]
        except TooSlowError:
            failed = Score(0.0, "timeout", f"it took longer than {self._term.timeout:g} s")
        except DiedError as error:
            failed = Score(0.0, "infrastructure", str(error))
        if self._async and len(job) > 1:  # it may be the fault of one of them
            return [score for one in job for score in self._score([one])]
        return [failed] * len(job)

    def _seconds(self, job: Sequence[Rollout]) -> float:
        if not self._async:
            return self._term.timeout
        return self._term.timeout * -(-len(job) // self._term.concurrency) + GRACE


def _killed(process: Process | None) -> Process | None:
    """Kill a process; None, one that is not started yet, takes its place."""
    if process is not None:
        process.kill()
    return None


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process with all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):  # what was not read yet is flushed
                pipe.close()
