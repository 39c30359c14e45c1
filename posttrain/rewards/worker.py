"""A process that runs one reward or one task: `python -m posttrain.rewards.worker`.

It reads lines of JSON: first the reward with its options, then rollouts to score; or first the task, then a rollout
that needs its next step. It writes one line per input line. Output of the user's code goes to stderr. It ends when its
parent ends.
"""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import cache
from typing import Any, TextIO

from posttrain.errors import PosttrainError
from posttrain.measure.stall import print_stacks_on_signal
from posttrain.measure.terminal import make_streams_safe
from posttrain.rewards.reward import Each, as_score, guarded, raised, score_one
from posttrain.rollout import Prompt, Rollout, Score, TokenRow
from posttrain.settings.host import HOST
from posttrain.settings.params import check

PR_SET_PDEATHSIG = 1
NO_TOKENS = TokenRow([], [])
Answer = Callable[[Any], dict[str, Any]]


def main() -> None:
    """Answer requests until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    print_stacks_on_signal()
    requests, answers = _private_pipes()
    make_streams_safe()
    setup = json.loads(requests.readline())
    names = list(setup["secret_names"])
    HOST.settings_file, HOST.secret_names = setup["settings_file"], lambda: names
    try:
        answer = _steps(setup["task"]) if "task" in setup else _scores(setup)
    except PosttrainError as error:
        _write(answers, {"error": [type(error).__name__, error.what, error.where, error.fix]})
        return
    _write(answers, {"ready": True})
    for line in requests:
        _write(answers, answer(json.loads(line)))


def _steps(name: str) -> Answer:
    """Return a function that returns a task's next step for a rollout, and the seconds it took."""
    from posttrain.tasks.step import take_step
    from posttrain.tasks.task import load_task

    reply = load_task(name).reply

    def answer(plain: Any) -> dict[str, Any]:
        started = time.monotonic()
        step = take_step(reply, rollout_from(plain))
        return {"step": asdict(step), "seconds": time.monotonic() - started}

    return answer


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
    """Return the scores of an `async` function, at most `most` at a time. Each has its own time limit."""
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


def rollout_to(rollout: Rollout, *, tokens: bool = True) -> dict[str, Any]:
    """A rollout as plain data, without its scores; without `tokens` only its texts."""
    if not tokens:
        rollout = replace(rollout, prompt=replace(rollout.prompt, ids=[]), row=NO_TOKENS, logps=[])
    prompt, row = rollout.prompt, rollout.row
    return {
        "prompt": {
            "id": prompt.id,
            "messages": [dict(turn) for turn in prompt.messages],
            "ids": list(prompt.ids),
            "answer": prompt.answer,
            "info": dict(prompt.info),
            "task": prompt.task,
            "problem": prompt.problem,
            "variables": dict(prompt.variables),
        },
        "sample": rollout.sample,
        "row": [list(row.prompt), list(row.rest), None if row.mask is None else list(row.mask)],
        "logps": list(rollout.logps),
        "text": rollout.text,
        "finish": rollout.finish,
        "turns": [dict(turn) for turn in rollout.turns],
        "version": rollout.version,
        "turn_rewards": list(rollout.turn_rewards),
        "info": dict(rollout.info),
    }


def rollout_from(plain: Mapping[str, Any]) -> Rollout:
    """Return the rollout that `rollout_to` converted."""
    typed = {"prompt": Prompt(**plain["prompt"]), "row": TokenRow(*plain["row"])}
    return Rollout(**{**plain, **typed, "turn_rewards": tuple(plain["turn_rewards"])})


def _private_pipes() -> tuple[TextIO, TextIO]:
    """Return stdin and stdout under new numbers. The reward gets an empty stdin, and its output goes to stderr."""
    requests, answers = os.fdopen(os.dup(0), encoding="utf-8"), os.fdopen(os.dup(1), "w", encoding="utf-8")
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.dup2(2, 1)
    return requests, answers


def _write(answers: TextIO, answer: Mapping[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
