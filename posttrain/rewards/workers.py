"""Worker processes that score rollouts: one that takes too long or dies is killed and replaced."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import select
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

from posttrain import errors
from posttrain.errors import RewardError
from posttrain.params import Params
from posttrain.rewards import worker
from posttrain.rewards.reward import Term
from posttrain.rollout import Rollout, Score
from posttrain.workspace import LIBRARY

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
            [sys.executable, "-m", worker.__name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(LIBRARY), os.environ.get("PYTHONPATH", "")])},
            start_new_session=True,  # so that it can be killed with all that it started
        )
        self._buffer = b""
        self.kill = weakref.finalize(self, _kill, self._process)
        try:
            answer = self.ask(setup, START_SECONDS)
        except (DiedError, TooSlowError) as error:
            self.kill()
            what = f"its worker process did not start ({error})"
            fix = f"Try `{sys.executable} -m {worker.__name__}` in this folder"
            raise RewardError(what=what, where=f"reward '{setup['name']}'", fix=fix) from error
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


class Workers:
    """Scores rollouts in processes of their own.

    Example: `Workers("my_rewards:slow", term, options, "online.runs.grpo")(rollouts)`
    """

    def __init__(self, name: str, term: Term, options: Params, where: str) -> None:
        self._term = term
        self._setup = {
            "name": name,
            "options": options.model_dump(mode="json", exclude_unset=True),
            "where": where,
            "timeout": term.timeout,
            "concurrency": term.concurrency,
        }
        self._async = term.reward.each is not None and inspect.iscoroutinefunction(term.reward.each)
        self._idle: SimpleQueue[Process | None] = SimpleQueue()
        for _ in range(term.workers):
            self._idle.put(None)  # a process that is not started yet

    def __call__(self, rollouts: Sequence[Rollout]) -> list[Score]:
        """A score of each rollout, in their order."""
        jobs = self._jobs(list(rollouts))
        with ThreadPoolExecutor(min(self._term.workers, max(len(jobs), 1))) as threads:
            return [score for scores in threads.map(self._score, jobs) for score in scores]

    def _jobs(self, rollouts: list[Rollout]) -> list[list[Rollout]]:
        """What one call gets: one rollout, several for an `async` function, or all for a function of all."""
        if self._term.reward.each is None:
            return [rollouts] if rollouts else []
        size = self._term.concurrency if self._async else 1
        return [rollouts[start : start + size] for start in range(0, len(rollouts), size)]

    def _score(self, job: list[Rollout]) -> list[Score]:
        """The scores of one call; a process that dies gets a successor, for as many tries as it has."""
        failed = Score(0.0, "infrastructure")
        for _ in range(TRIES):
            process = self._idle.get()
            try:
                process = process or Process(self._setup)
                answer = process.ask([worker.rollout_to(one) for one in job], self._seconds(job))
                return [Score(*one) for one in answer["scores"]]
            except TooSlowError:
                process = _killed(process)
                failed = Score(0.0, "timeout", f"it took longer than {self._term.timeout:g} s")
                break
            except DiedError as error:
                process = _killed(process)
                failed = Score(0.0, "infrastructure", f"its worker process died {TRIES} times ({error})")
            finally:
                self._idle.put(process)
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
            pipe.close()
