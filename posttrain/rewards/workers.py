"""Score rollouts in worker processes, which also run tasks."""

from __future__ import annotations

import inspect
import os
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

from posttrain import errors
from posttrain.errors import RewardError
from posttrain.isolation.child import Child, DiedError, TooSlowError
from posttrain.isolation.library import PASSED, library_command, library_environment
from posttrain.isolation.pool import Pool
from posttrain.measure.masking import secret_variables
from posttrain.rewards import worker
from posttrain.rewards.catalog import REWARDS
from posttrain.rewards.reward import WeightedReward
from posttrain.rollout import Rollout, Score, Status
from posttrain.settings.host import HOST
from posttrain.settings.params import Params
from posttrain.settings.plain import texts_in

START_SECONDS = 120.0
"""Seconds for the imports of a worker process."""
GRACE = 5.0
"""Extra seconds for a process that runs an `async` function, beyond its own time limit."""


def worker_pool(setup: Mapping[str, Any], size: int, env: Collection[str] | None = None) -> Pool:
    """Make a pool of processes that run one reward or one task.

    They get the secret variables in `env`, or without it the variables that params.yaml lists.

    Example: `worker_pool({"task": "my_tool:task", "label": "task 'my_tool:task'"}, 2).ask(request, seconds=10.0)`
    """
    return Pool(partial(_started, setup, worker_environment(env)), size)


def worker_environment(env: Collection[str] | None) -> dict[str, str]:
    """Return this process's environment without the secrets that are not listed."""
    known = library_environment()
    secret = secret_variables(known).keys() - {*PASSED, *(HOST.secret_names() if env is None else env)}
    return {name: value for name, value in known.items() if name not in secret}


def _started(setup: Mapping[str, Any], environment: Mapping[str, str]) -> Child:
    """Start a process and wait until it has imported the user's module."""
    child = Child(library_command(worker.__name__), environment)
    try:
        told = {"settings_file": HOST.settings_file, "secret_names": sorted(set(HOST.secret_names()))}
        answer = child.ask({**setup, **told}, START_SECONDS)
    except (DiedError, TooSlowError) as error:
        child.kill()
        what = f"its worker process did not start ({error})"
        fix = HOST.fix("worker", "Read what it printed above")
        raise RewardError(what=what, where=str(setup["label"]), fix=fix) from error
    if "error" in answer:
        kind, what, where, fix = answer["error"]
        raise getattr(errors, kind)(what=what, where=where, fix=fix)
    return child


def _set(env: Sequence[str], reward: str, where: str) -> Sequence[str]:
    """Return the names of variables. Each must be set."""
    if unset := [name for name in env if name not in os.environ]:
        what = f"the environment variable {unset[0]} is not set"
        fix = f"Run with {unset[0]}=... in the environment, or remove its name there"
        raise RewardError(what=what, where=f"{where}.{reward}.env", fix=fix)
    return env


class Workers:
    """Scores rollouts in separate processes.

    Example: `Workers("my_rewards:slow", term, options, "online.runs.grpo")(rollouts)`
    """

    def __init__(self, name: str, term: WeightedReward, options: Params, where: str) -> None:
        self._term = term
        setup = {
            "label": f"reward '{name}'",
            "name": term.type or name,
            "called": name,
            "options": options.model_dump(mode="json", exclude_unset=True),
            "where": where,
            "timeout": term.timeout,
            "concurrency": term.concurrency,
        }
        self._is_foreign = REWARDS.is_foreign(term.type or name)
        """Whether the reward is not ours. Ours read texts alone: tokens as JSON take longer than their work."""
        self._slow: Status = "timeout" if self._is_foreign else "unparseable"
        """Our own parsers are slow only where a completion makes them so, which would else leave its group."""
        self._async = term.reward.each is not None and inspect.iscoroutinefunction(term.reward.each)
        self._pool = worker_pool(setup, term.workers, {*_set(term.env, name, where), *texts_in(setup["options"])})

    def __call__(self, rollouts: Sequence[Rollout]) -> list[Score]:
        """Return a score for each rollout, in the same order."""
        return [score for scores in self._pool.map(self._score, self._jobs(list(rollouts))) for score in scores]

    def _jobs(self, rollouts: list[Rollout]) -> list[list[Rollout]]:
        """Return each call's rollouts: one, several for an `async` function, or all for a function of all rollouts."""
        if self._term.reward.each is None:
            return [rollouts] if rollouts else []
        size = self._term.concurrency if self._async else 1
        return [rollouts[start : start + size] for start in range(0, len(rollouts), size)]

    def _score(self, job: list[Rollout]) -> list[Score]:
        """Return the scores of one call."""
        try:
            answer = self._pool.ask(
                [worker.rollout_to(rollout, tokens=self._is_foreign) for rollout in job], self._seconds(job)
            )
            return [Score(*values) for values in answer["scores"]]
        except TooSlowError:
            failed = Score(0.0, self._slow, f"it took longer than {self._term.timeout:g} s")
        except DiedError as error:
            failed = Score(0.0, "infrastructure", str(error))
        if self._async and len(job) > 1:  # it may be the fault of one of them
            return [score for rollout in job for score in self._score([rollout])]
        return [failed] * len(job)

    def _seconds(self, job: Sequence[Rollout]) -> float:
        if not self._async:
            return self._term.timeout
        return self._term.timeout * -(-len(job) // self._term.concurrency) + GRACE
