"""Score rollouts in worker processes."""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence

from posttrain.errors import RewardError
from posttrain.isolation.child import DiedError, TooSlowError
from posttrain.rewards import worker
from posttrain.rewards.catalog import REWARDS
from posttrain.rewards.reward import WeightedReward
from posttrain.rollout import Rollout, Score, Status
from posttrain.settings.params import Params
from posttrain.settings.plain import texts_in
from posttrain.tasks.worker import rollout_to, worker_pool

GRACE = 5.0
"""Extra seconds for a process that runs an `async` function, beyond its own time limit."""


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
        """True if the reward is not posttrain's. posttrain's rewards only read texts, because sending tokens as JSON
        takes longer than the work."""
        self._slow: Status = "timeout" if self._is_foreign else "unparseable"
        """posttrain's parsers are slow only on special completions, and a timeout would remove them from their
        group."""
        self._async = term.reward.each is not None and inspect.iscoroutinefunction(term.reward.each)
        env = {*_set(term.env, name, where), *texts_in(setup["options"])}
        self._pool = worker_pool(worker.__name__, setup, term.workers, env)

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
                [rollout_to(rollout, tokens=self._is_foreign) for rollout in job], self._seconds(job)
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
