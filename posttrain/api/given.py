"""Prompts and rewards as a call is given them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from posttrain.api.own_model import Messages
from posttrain.data.columns import with_ids
from posttrain.data.layouts import convert, table_of
from posttrain.data.shown import short_repr
from posttrain.data.turns import RowError
from posttrain.errors import DataError, ParamsError
from posttrain.rewards.catalog import learned, term
from posttrain.rewards.reward import Context, Reward, ScoreFn, WeightedReward
from posttrain.rewards.worker import concurrently, finished
from posttrain.rollout import Prompt
from posttrain.sampling.sampler import encode_prompts, prompts_of
from posttrain.settings.params import check
from posttrain.tasks.task import load_task
from posttrain.text.chat import ChatText


def terms_given(reward: Any) -> dict[str, WeightedReward]:
    """Return one reward, or a mapping of several, with their weights."""
    if isinstance(reward, Mapping):
        return {str(name): _term(str(name), value) for name, value in reward.items()}
    name = getattr(reward, "__name__", "reward")
    if name == "<lambda>":
        fix = 'Give it one: reward={"short": lambda rollouts: ...}'
        raise ParamsError(what="a lambda has no name for its metrics", where="reward", fix=fix)
    return {name: _term("reward", reward)}


def refuse_learned(terms: Mapping[str, WeightedReward], fix: str) -> None:
    """Refuse the reward `model` where no reward model is given."""
    if named := learned(terms):
        what = f"the reward '{next(iter(named))}' is the score of a reward model, and none is given"
        raise ParamsError(what=what, where="reward", fix=fix)


def _term(name: str, value: Any) -> WeightedReward:
    function, weight = value if isinstance(value, tuple) and len(value) == 2 else (value, 1.0)
    if isinstance(function, Reward):
        options = check(function.options, {}, where=f"reward.{name}", file="arguments")
        return WeightedReward(reward=_in_this_process(function), weight=weight, options=options)
    if callable(function):
        reward: Reward[Any] = Reward(lambda options, context: lambda rollouts: finished(function(rollouts)))  # noqa: ARG005
        return WeightedReward(reward=reward, weight=weight)
    try:
        return term(name, value)
    except ValueError as error:
        fix = "Give a function of rollouts, or the settings of a reward of posttrain (docs/rewards.md)"
        raise ParamsError(what=str(error), where="reward", fix=fix) from error


def _in_this_process(reward: Reward[Any]) -> Reward[Any]:
    """Return a reward that needs no worker processes, which could not import it."""
    each = reward.each
    if each is None or not inspect.iscoroutinefunction(each):
        return replace(reward, isolated=False)
    limits = WeightedReward(reward=reward)

    def score_fn(options: Any, context: Context) -> ScoreFn:  # noqa: ARG001
        return lambda rollouts: concurrently(each, rollouts, options, limits.timeout, limits.concurrency)

    return replace(reward, isolated=False, score_fn=score_fn)


def _task(row: Mapping[str, Any]) -> str:
    """Return the task that a row names, whose rewards and replies it wants; "" without one."""
    task = row.get("task") or ""
    if not isinstance(task, str):
        raise RowError(f"'task' is {short_repr(task)}; give the name of a task")
    load_task(task)
    return task


def prompts_given(
    text: ChatText, given: Sequence[str | Messages | Mapping[str, Any] | Prompt], argument: str = "prompts"
) -> list[Prompt]:
    """Return the prompts with their tokens; a row is read as a row of a file is."""
    if isinstance(given, str):
        raise DataError(what="this is one string, not a list", where=argument, fix=f"Write [{short_repr(given)}]")
    if not given:
        raise DataError(what="there are no prompts", where=argument, fix="Give at least one")
    if all(isinstance(prompt, Prompt) for prompt in given):
        return [prompt for prompt in given if isinstance(prompt, Prompt)]
    rows = []
    for number, asked in enumerate(given):
        row = asked if isinstance(asked, Mapping) else {"prompt": asked}
        try:
            rows.append({**convert(row, "prompts"), "task": _task(row)})
        except RowError as error:
            fix = "help(posttrain.train_online) lists the columns"
            raise DataError(what=str(error), where=f"{argument}[{number}]", fix=fix) from error
    table = with_ids(table_of(rows, "prompts").with_columns(split=pl.lit("train")), "prompts")
    return encode_prompts(text, prompts_of(table.iter_rows(named=True)))
