"""Rewards that a script passes: functions, rewards made with `rule`, and names with settings."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from posttrain.errors import ParamsError, excerpt
from posttrain.rewards.catalog import REWARDS, term
from posttrain.rewards.reward import Context, Reward, ScoreFn, WeightedReward
from posttrain.rewards.worker import concurrently, finished
from posttrain.settings.params import check


def terms_given(reward: Any) -> dict[str, WeightedReward]:
    """Return one reward, or a mapping of several, with weights."""
    if isinstance(reward, Mapping):
        return {str(name): _term(str(name), value) for name, value in reward.items()}
    _refuse_no_reward(reward)
    name = getattr(reward, "__name__", "reward")
    if name == "<lambda>":
        fix = 'Give it a name: reward={"short": lambda rollouts: ...}'
        raise ParamsError(what="a lambda has no name for its metrics", where="reward", fix=fix)
    return {name: _term("reward", reward)}


ASKED = "Give a function of rollouts, a reward made with posttrain.rewards.rule, or a mapping of several"


def _refuse_no_reward(reward: Any) -> None:
    """Reject anything that is not a reward or a reward with its weight, and say what to write instead."""
    value = reward[0] if isinstance(reward, tuple) and len(reward) == 2 else reward
    if callable(value) or isinstance(value, Reward):
        return
    what, fix = f"it is {excerpt(value, 40)}, not a reward", f'{ASKED}, e.g. {{"correct": 1.0}}'
    if reward is None:
        what = "there is no reward"
    elif isinstance(value, str):
        fix = f'Write {{"{value}": 1.0}}' if value in REWARDS else fix
    elif isinstance(value, list | tuple):
        names = [getattr(one, "__name__", "NAME") for one in value if callable(one)] or ["NAME"]
        several = ", ".join(f'"{name}": {name}' for name in names)
        what, fix = "it is a list", f"Give a mapping of several: {{{several}}}"
    raise ParamsError(what=what, where="reward", fix=fix)


def _term(name: str, value: Any) -> WeightedReward:
    function, weight = value if isinstance(value, tuple) and len(value) == 2 else (value, 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float):
        fix = f'Give a number: {{"{name}": (function, 1.0)}}'
        raise ParamsError(what=f"its weight is {excerpt(weight, 40)}", where=f"reward.{name}", fix=fix)
    if not (callable(function) or isinstance(function, Reward | WeightedReward | int | float | Mapping)):
        what = f"it is {excerpt(value, 40)}"
        raise ParamsError(what=what, where=f"reward.{name}", fix="Give a function, (function, weight), or a weight")
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
    """Return the reward without worker processes, which could not import it."""
    each = reward.each
    if each is None or not inspect.iscoroutinefunction(each):
        return replace(reward, isolated=False)
    limits = WeightedReward(reward=reward)

    def score_fn(options: Any, context: Context) -> ScoreFn:  # noqa: ARG001
        return lambda rollouts: concurrently(each, rollouts, options, limits.timeout, limits.concurrency)

    return replace(reward, isolated=False, score_fn=score_fn)


def with_terms(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings whose `reward` and `watch.reward` may be functions, with the functions converted to terms."""
    converted = dict(settings)
    if _has_functions(converted.get("reward")):
        converted["reward"] = terms_given(converted["reward"])
    watch = converted.get("watch")
    if isinstance(watch, Mapping) and _has_functions(watch.get("reward")):
        converted["watch"] = {**watch, "reward": terms_given(watch["reward"])}
    return converted


def _has_functions(reward: Any) -> bool:
    """Tell whether a reward contains more than names and their settings."""
    given = list(reward.values()) if isinstance(reward, Mapping) else [reward]
    return any(callable(one) or isinstance(one, Reward | tuple) for one in given)
