"""Rewards as a script gives them: functions, rewards made with `rule`, and names with their settings."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from posttrain.errors import ParamsError
from posttrain.rewards.catalog import term
from posttrain.rewards.reward import Context, Reward, ScoreFn, WeightedReward
from posttrain.rewards.worker import concurrently, finished
from posttrain.settings.params import check


def terms_given(reward: Any) -> dict[str, WeightedReward]:
    """Return one reward, or a mapping of several, with their weights."""
    if isinstance(reward, Mapping):
        return {str(name): _term(str(name), value) for name, value in reward.items()}
    name = getattr(reward, "__name__", "reward")
    if name == "<lambda>":
        fix = 'Give it one: reward={"short": lambda rollouts: ...}'
        raise ParamsError(what="a lambda has no name for its metrics", where="reward", fix=fix)
    return {name: _term("reward", reward)}


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


def with_terms(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings whose `reward` and `watch.reward` may be functions, with terms in their place."""
    found = dict(settings)
    if _has_functions(found.get("reward")):
        found["reward"] = terms_given(found["reward"])
    watch = found.get("watch")
    if isinstance(watch, Mapping) and _has_functions(watch.get("reward")):
        found["watch"] = {**watch, "reward": terms_given(watch["reward"])}
    return found


def _has_functions(reward: Any) -> bool:
    """Return whether a reward is more than names and their settings."""
    given = list(reward.values()) if isinstance(reward, Mapping) else [reward]
    return any(callable(one) or isinstance(one, Reward | tuple) for one in given)
