"""The names that a run's code is looked up by, and the settings that count as its code."""

from __future__ import annotations

from typing import Any

import pytest

from posttrain.pipeline.lock.run_settings import names_of, settings_of

SETTINGS: dict[str, Any] = {
    "data": {
        "tasks": {"d": {"task": "two_step", "mix": {"a": {"task": "sums"}}}},
        "filters": {"f": {"data": "d/prompts"}},
    },
    "online": {"runs": {"grpo": {"start": "sft/a", "data": "f/prompts"}}},
    "evaluate": {
        "settings": {"data": "d/prompts", "samples": 4, "reward": {"length": 1.0}, "max_failed": 0.5},
        "policies": {"p": "sft/a"},
        "runs": {"r": {"policy": "sft/a", "sampling": {"max_tokens": 9}, "reward_model": "reward/a"}},
    },
}


def test_the_texts_of_a_runs_settings() -> None:
    assert set(names_of("online@grpo", SETTINGS)) >= {"sft/a", "f/prompts", "two_step", "sums"}
    assert "length" in set(names_of("evaluate@p", SETTINGS))
    assert set(names_of("report", SETTINGS)) >= {"two_step", "length"}
    assert list(names_of("theirs@a", SETTINGS)) == []


def test_completions_do_not_name_what_only_scores_them() -> None:
    names = set(names_of("completions@p", SETTINGS))
    assert {"sft/a", "two_step"} <= names and "length" not in names
    assert "reward/a" not in set(names_of("completions_runs@r", SETTINGS))


def test_the_settings_of_completions_count_as_their_code() -> None:
    assert settings_of("completions@p", SETTINGS) == {"data": "d/prompts", "samples": "4", "policy": "sft/a"}
    assert settings_of("completions_runs@r", SETTINGS) == {"policy": "sft/a", "sampling.max_tokens": "9"}
    seeded = {**SETTINGS, "seed": 3}
    assert settings_of("online@grpo", seeded) == {"seed": "3"}
    assert settings_of("evaluate@p", seeded) == {} == settings_of("online@grpo", SETTINGS)


@pytest.mark.parametrize(
    ("own", "has", "lacks"),
    [
        ({}, {"correct", "format", "numeric"}, set()),
        ({"reward": {"length": 1.0}}, {"length"}, {"correct", "numeric"}),
        ({"reward": {"correct": 1.0}}, {"correct", "numeric"}, {"format"}),
        ({"reward": {"correct": {"answer": "exact"}}}, {"correct", "exact"}, {"numeric"}),
        ({"reward": {"mine": {"type": "correct"}}}, {"correct", "numeric"}, set()),
        ({"reward": {"length": 1.0}, "watch": {"every": 2}}, {"correct", "numeric"}, set()),
        ({"reward": {"cascade": {"of": {"correct": 1.0, "length": 1.0}}}}, {"correct", "numeric"}, set()),
        ({"reward": {"length": 1.0}, "metrics": ["correct"]}, {"numeric"}, set()),
    ],
)
def test_defaults_are_named_where_they_count(own: dict[str, Any], has: set[str], lacks: set[str]) -> None:
    names = set(names_of("online@a", {"online": {"runs": {"a": {"start": "sft/a", **own}}}}))
    assert has <= names and not lacks & names
