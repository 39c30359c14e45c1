"""The training metric at equal steps, tokens and time, read from the learning curves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from posttrain.pipeline.compare.evaluated import EvaluatedPolicy
from posttrain.pipeline.compare.factors import differing
from posttrain.pipeline.compare.settings import Setting
from posttrain.pipeline.compare.statistics import Difference, Floats, difference
from posttrain.settings.params import check

Budget = Literal["steps", "tokens", "seconds"]
BUDGETS: tuple[Budget, ...] = ("steps", "tokens", "seconds")
METRICS = ("reward", "accuracy")
"""Metrics of a curve that measure the policy: on its samples, or on its training pairs."""
WINDOW = 0.1
"""The metric is averaged over the last tenth of the budget, because single steps are noisy; else its last step
counts."""


@dataclass(frozen=True)
class AtEqual:
    """All settings at the same amount of a budget. `why_not`: the reason if the values are unknown."""

    budget: Budget
    amount: float
    values: list[Floats]
    """One value per seed, for each setting."""
    metric: str = ""
    why_not: str = ""

    def difference(self, left: int, right: int) -> Difference:
        return difference(self.values[left][:, None], self.values[right][:, None])


def at_equal(settings: Sequence[Setting], budget: Budget) -> AtEqual:
    """Return the metric of every setting at the largest amount that all settings have used."""
    trained = [policy for setting in settings for policy in setting.trained]
    metric = next((name for name in METRICS if all(name in policy.curve for policy in trained)), None)
    if metric is None:
        return AtEqual(budget, 0.0, [], why_not=f"their curves share no {' or '.join(METRICS)}")
    if unlike := _learned_otherwise(trained, metric):
        why = f"their {metric} has another meaning ({', '.join(unlike[:3])})"
        return AtEqual(budget, 0.0, [], metric, why)
    spent = {id(policy): used(policy, budget) for policy in trained}
    lacking = [policy.name for policy in trained if spent[id(policy)] is None]
    if lacking:
        return AtEqual(budget, 0.0, [], metric, f"no {budget} known for {_few(lacking)}")
    amount = min(float(amounts[-1]) for amounts in spent.values() if amounts is not None)
    value_of = {id(policy): _value(policy.curve[metric], spent[id(policy)], amount) for policy in trained}
    if lacking := [policy.name for policy in trained if value_of[id(policy)] is None]:
        return AtEqual(budget, amount, [], metric, f"no {metric} within this budget for {_few(lacking)}")
    values = [np.array([value_of[id(policy)] for policy in setting.trained], dtype=float) for setting in settings]
    return AtEqual(budget, amount, values, metric)


def _learned_otherwise(trained: Sequence[EvaluatedPolicy], metric: str) -> list[str]:
    """Return the settings that change the training metric's meaning and in which the trainings differ."""
    decide = ("reward", "reward_model", "data", "rollout.sampling") if metric == "reward" else ("data",)
    heads = tuple(f"{key}." for key in decide)
    rewards = (
        {key: value for key, value in policy.run_settings.items() if f"{key}.".startswith(heads)} for policy in trained
    )
    return differing(list(rewards))


def _few(names: Sequence[str]) -> str:
    return f"{', '.join(names[:3])}{' ...' * (len(names) > 3)}"


def used(policy: EvaluatedPolicy, budget: Budget) -> Floats | None:
    """Return the used budget of a training after each step; None if unknown."""
    rows = len(policy.curve.get("step", ()))
    # the last row may be an evaluation after the last step
    steps = sum(loss is not None for loss in policy.curve["loss"]) if "loss" in policy.curve else rows
    if not steps:
        return None
    done: Floats = np.minimum(np.arange(1.0, rows + 1), steps)
    if budget in policy.curve and budget != "steps":
        return np.cumsum([value or 0.0 for value in policy.curve[budget]])
    if budget == "steps":
        return done
    if budget == "seconds":
        # Only the total is known; the steps of one training take about the same time.
        return None if policy.seconds is None else policy.seconds * done / steps
    sampled = _rows_per_step(policy)
    return None if sampled is None else np.cumsum([sampled * (value or 0.0) for value in policy.curve["length"]])


def _rows_per_step(policy: EvaluatedPolicy) -> float | None:
    """Return an online run's completions per optimizer step, whose mean length its curve has; None if unknown."""
    if not policy.model.startswith("online/") or "length" not in policy.curve:
        return None
    from posttrain.online.rollout_params import RolloutParams

    given = {
        key.removeprefix("rollout."): json.loads(value)
        for key, value in policy.run_settings.items()
        if _of_rollout(key)
    }
    rollout = check(RolloutParams, given, where=policy.name)
    return rollout.prompts * rollout.group_size / (rollout.minibatches * rollout.epochs)


def _of_rollout(key: str) -> bool:
    return key.startswith("rollout.") and key.count(".") == 1


def _value(column: Sequence[float | None], spent: Floats | None, amount: float) -> float | None:
    """Return the mean over the window, or the last value before it; None if there is none within the budget."""
    assert spent is not None
    within = [
        (at, value) for value, at in zip(column, spent, strict=True) if value is not None and at <= amount * (1 + 1e-9)
    ]
    inside = [value for at, value in within if at >= (1 - WINDOW) * amount] or [value for _, value in within[-1:]]
    return float(np.mean(inside)) if inside else None
