"""A process that runs one reward: `python -m posttrain.rewards.worker`. It reads the reward, then scores rollouts."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

from posttrain.rewards.reward import Each, as_score, guarded, raised, score_one
from posttrain.rollout import Rollout, Score
from posttrain.settings.params import check
from posttrain.tasks.worker import Answer, rollout_from, serve


def _scores(setup: Mapping[str, Any]) -> Answer:
    """Return a function that scores rollouts."""
    score = _scorer(setup)

    def answer(plain: Any) -> dict[str, Any]:
        scores = score([rollout_from(item) for item in plain])
        return {"scores": [result.plain for result in scores]}

    return answer


def _scorer(setup: Mapping[str, Any]) -> Any:
    """Return a scorer for the reward that the parent names."""
    from posttrain.rewards.catalog import reward_named
    from posttrain.rewards.reward import Context

    name, where = setup["name"], setup["where"]
    reward = reward_named(name, where)
    options = check(reward.options, setup["options"], where=name)
    each = reward.each
    if each is not None and inspect.iscoroutinefunction(each):
        limits = setup["timeout"], setup["concurrency"]
        return lambda rollouts: concurrently(each, rollouts, options, *limits)
    if each is not None:
        return lambda rollouts: [score_one(each, rollout, options) for rollout in rollouts]
    score_fn = reward.score_fn(options, Context(None, where, name=setup["called"]))

    def score(rollouts: Sequence[Rollout]) -> list[Score]:
        return guarded(lambda: finished(score_fn(rollouts)), len(rollouts))

    return score


def finished(returned: Any) -> Any:
    """Return the final result of an `async` function of all rollouts."""
    return _run(returned) if inspect.iscoroutine(returned) else returned


def concurrently(each: Each, rollouts: Sequence[Rollout], options: Any, seconds: float, most: int) -> list[Score]:
    """Return the scores of an `async` function, at most `most` at a time. Each rollout has a separate time limit."""
    scores: list[Score] = _run(_concurrently(each, rollouts, options, seconds, most))
    return scores


def _run(coroutine: Any) -> Any:
    """Run a coroutine in the process's event loop; beside a notebook's loop, in a thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _loop().run(coroutine)
    return _thread().submit(_loop().run, coroutine).result()


@cache
def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1)


@cache
def _loop() -> asyncio.Runner:
    """Return the event loop of all calls, which owns the connections that a reward keeps open."""
    return asyncio.Runner()


async def _concurrently(
    each: Each, rollouts: Sequence[Rollout], options: Any, seconds: float, most: int
) -> list[Score]:
    free = asyncio.Semaphore(most)

    async def score_of(rollout: Rollout) -> Score:
        async with free:
            try:
                async with asyncio.timeout(seconds) as limit:
                    returned: Any = each(rollout, options)
                    return as_score(await returned)
            except Exception as error:  # noqa: BLE001  whatever the function raises: it is no score
                if isinstance(error, TimeoutError) and limit.expired():
                    return Score(0.0, "timeout", f"it took longer than {seconds:g} s")
                return raised(error)

    return list(await asyncio.gather(*map(score_of, rollouts)))


if __name__ == "__main__":
    serve(_scores)
