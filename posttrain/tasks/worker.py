"""A process that runs one task (`python -m posttrain.tasks.worker`), and the pool that starts such processes.

A reward's process works in the same way.

It reads lines of JSON: first the task, then a rollout that needs its next step. It writes one line per input line.
Output of the user's code goes to stderr. It ends when its parent ends.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any, TextIO

from posttrain import errors
from posttrain.errors import PosttrainError, RewardError
from posttrain.isolation.child import Child, DiedError, TooSlowError
from posttrain.isolation.library import PASSED, library_command, library_environment
from posttrain.isolation.pool import Pool
from posttrain.measure.masking import secret_variables
from posttrain.measure.stall import print_stacks_on_signal
from posttrain.measure.terminal import make_streams_safe
from posttrain.rollout import Prompt, Rollout, TokenRow
from posttrain.settings.host import HOST
from posttrain.tasks.step import take_step
from posttrain.tasks.task import load_task

PR_SET_PDEATHSIG = 1
NO_TOKENS = TokenRow([], [])
START_SECONDS = 120.0
"""Seconds for the imports of a worker process."""
Answer = Callable[[Any], dict[str, Any]]


def serve(made: Callable[[Mapping[str, Any]], Answer]) -> None:
    """Answer requests until stdin ends. `made`: creates the answering function from the first line."""
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
        answer = made(setup)
    except PosttrainError as error:
        _write(answers, {"error": [type(error).__name__, error.what, error.where, error.fix]})
        return
    _write(answers, {"ready": True})
    for line in requests:
        _write(answers, answer(json.loads(line)))


def _steps(setup: Mapping[str, Any]) -> Answer:
    """Return a function that returns a task's next step for a rollout, and the seconds it took."""
    reply = load_task(setup["task"]).reply

    def answer(plain: Any) -> dict[str, Any]:
        started = time.monotonic()
        step = take_step(reply, rollout_from(plain))
        return {"step": asdict(step), "seconds": time.monotonic() - started}

    return answer


def rollout_to(rollout: Rollout, *, tokens: bool = True) -> dict[str, Any]:
    """A rollout as plain data, without its scores; without `tokens`, only its texts."""
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
    """Return the rollout from the plain data of `rollout_to`."""
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


def worker_pool(program: str, setup: Mapping[str, Any], size: int, env: Collection[str] | None = None) -> Pool:
    """Make a pool of processes that run one reward or one task. `program`: the module that they run.

    They get the secret variables in `env`, or without it the variables that params.yaml lists.

    Example: `worker_pool("posttrain.tasks.worker", {"task": "my_tool:task", "label": "task 'my_tool:task'"}, 2)`
    """
    return Pool(partial(_started, program, setup, worker_environment(env)), size)


def worker_environment(env: Collection[str] | None) -> dict[str, str]:
    """Return this process's environment without secrets that are not listed."""
    known = library_environment()
    secret = secret_variables(known).keys() - {*PASSED, *(HOST.secret_names() if env is None else env)}
    return {name: value for name, value in known.items() if name not in secret}


def _started(program: str, setup: Mapping[str, Any], environment: Mapping[str, str]) -> Child:
    """Start a process and wait until it has imported the user's module."""
    child = Child(library_command(program), environment)
    try:
        told = {"settings_file": HOST.settings_file, "secret_names": sorted(set(HOST.secret_names()))}
        answer = child.ask({**setup, **told}, START_SECONDS)
    except (DiedError, TooSlowError) as error:
        child.kill()
        what = f"its worker process did not start ({error})"
        fix = HOST.fix("worker", "Read its output above")
        raise RewardError(what=what, where=str(setup["label"]), fix=fix) from error
    if "error" in answer:
        kind, what, where, fix = answer["error"]
        raise getattr(errors, kind)(what=what, where=where, fix=fix)
    return child


if __name__ == "__main__":
    serve(_steps)
