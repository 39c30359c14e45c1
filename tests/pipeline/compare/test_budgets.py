"""The training metric at an equal budget, of curves whose values are written out."""

from __future__ import annotations

from typing import Any

import numpy as np

from posttrain.pipeline.compare.budgets import at_equal
from posttrain.pipeline.compare.evaluated import EvaluatedPolicy
from posttrain.pipeline.compare.settings import Setting


def training(name: str, seconds: float, reward: list[float | None], **more: Any) -> EvaluatedPolicy:
    curve = {"step": list(range(len(reward))), "reward": reward, **more.pop("curve", {})}
    settings = {f"online.runs.{name}.{key}": value for key, value in more.items()}
    return EvaluatedPolicy(
        name, name, f"online/{name}", settings, ("p",), np.zeros(1), curve, seconds, f"online.runs.{name}", parsed=True
    )


def test_rewards_of_other_functions_are_not_compared() -> None:
    one, other = training("a", 10.0, [0.5, 0.6]), training("b", 10.0, [1.0, 1.2], **{"reward.correct.weight": "2.0"})
    found = at_equal([Setting("a", [one]), Setting("b", [other])], "steps")
    assert found.why_not == "their reward has another meaning (reward.correct.weight)"
    same = training("b", 10.0, [1.0, 1.2], **{"kl.beta": "0.1"})
    assert not at_equal([Setting("a", [one]), Setting("b", [same])], "steps").why_not


def test_an_evaluation_after_the_last_step_is_no_step() -> None:
    watched = training("a", 8.0, [0.1, 0.2, None], curve={"loss": [1.0, 0.9, None], "heldout_reward": [0, None, 1]})
    plain = training("b", 8.0, [0.1, 0.2], curve={"loss": [1.0, 0.9]})
    for budget, amount in (("steps", 2.0), ("seconds", 8.0)):
        found = at_equal([Setting("a", [watched]), Setting("b", [plain])], budget)  # type: ignore[arg-type]
        assert (found.amount, [value.tolist() for value in found.values]) == (amount, [[0.2], [0.2]])


def test_where_no_step_ends_in_the_last_tenth_the_metric_is_that_of_the_last_step_within_the_budget() -> None:
    # steps of 2 s end at 8 and 10 s, those of the other at 9 s
    long, short = [[0.1, 0.2, 0.3, last, 0.5] for last in (0.4, 0.45)], [[0.0, 0.0, 0.0, 0.0, 0.9]] * 2
    settings = [
        Setting(name, [training(f"{name}_{nth}", seconds, reward) for nth, reward in enumerate(seeds)])
        for name, seconds, seeds in (("long", 10.0, long), ("short", 9.0, short))
    ]
    found = at_equal(settings, "seconds")
    assert (found.amount, [values.tolist() for values in found.values]) == (9.0, [[0.4, 0.45], [0.9, 0.9]])


def test_a_training_that_measured_nothing_within_the_budget_is_named() -> None:
    settings = [Setting("a", [training("a", 10.0, [0.5])]), Setting("b", [training("b", 4.0, [0.1, 0.2])])]
    assert at_equal(settings, "seconds").why_not == "no reward within this budget for a"
    assert at_equal(settings, "steps").values[1].tolist() == [0.1]
