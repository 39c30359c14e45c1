"""A sweep that trains also runs the evaluations of what it trains, and no others."""

from __future__ import annotations

import pytest

from flows.graph import Needs, Stage
from flows.sweep_targets import closure, missing_evaluations, without_effect

SETTINGS = {
    "base": {"scratch": {"tiny": {}}},
    "sft": {"runs": {"main": {"start": "base/tiny"}, "other": {"start": "base/tiny"}}},
    "online": {"runs": {"grpo": {"start": "sft/main"}, "ppo": {"start": "sft/other"}}},
    "evaluate": {
        "settings": {"data": "d/prompts"},
        "policies": {"base": "base/tiny", "sft": "sft/main", "grpo": "online/grpo"},
        "runs": {"hard": {"policy": "online/grpo", "data": "h/prompts"}},
    },
}


def stage(name: str, *upstream: str) -> Stage:
    return Stage(name, upstream, Needs(), ())


STAGES = [
    stage("data_tasks@d"),
    stage("base_scratch@tiny", "data_tasks@d"),
    stage("sft@main", "base_scratch@tiny"),
    stage("sft@other", "base_scratch@tiny"),
    stage("online@grpo", "sft@main"),
    stage("online@ppo", "sft@other"),
    stage("evaluate@base", "base_scratch@tiny"),
    stage("evaluate@sft", "sft@main"),
    stage("evaluate@grpo", "online@grpo"),
    stage("evaluate_runs@hard", "online@grpo"),
    stage("report", "evaluate@base", "evaluate@sft", "evaluate@grpo"),
]


@pytest.mark.parametrize(
    ("targets", "swept", "added", "unmeasured"),
    [
        (["online@grpo"], ["online.runs.grpo.kl.beta"], ["evaluate@grpo", "evaluate_runs@hard"], []),
        (["online@grpo"], ["sft.runs.main.epochs"], ["evaluate@grpo", "evaluate@sft", "evaluate_runs@hard"], []),
        (["online@grpo", "evaluate@grpo"], ["online.runs.grpo.lr"], ["evaluate_runs@hard"], []),
        (["online"], ["online.runs.grpo.lr"], ["evaluate@grpo", "evaluate_runs@hard"], ["online/ppo"]),
        (["evaluate@grpo"], ["sft.runs.main.epochs"], ["evaluate@sft", "evaluate_runs@hard"], []),
        (["evaluate@grpo"], ["evaluate.settings.samples"], [], []),
        (["data_tasks"], ["data.tasks.d.prompts"], [], []),
        (["online@grpo"], ["seed"], ["evaluate@base", "evaluate@grpo", "evaluate@sft", "evaluate_runs@hard"], []),
    ],
)
def test_what_is_trained_is_measured(
    targets: list[str], swept: list[str], added: list[str], unmeasured: list[str]
) -> None:
    assert missing_evaluations(SETTINGS, closure(STAGES, targets), targets, swept) == (added, unmeasured)


def test_targets_run_with_what_they_need() -> None:
    assert [one.name for one in closure(STAGES, ["sft"])] == [
        "data_tasks@d",
        "base_scratch@tiny",
        "sft@main",
        "sft@other",
    ]


@pytest.mark.parametrize(
    ("key", "lost"),
    [
        ("online.runs.grpo.kl.beta", True),
        ("online.runs.grpo", True),
        ("sft.runs.main.epochs", False),
        ("base.scratch.tiny.steps", False),
        ("data.tasks.d.splits", False),
        ("evaluate.settings.samples", False),
        ("seed", False),
    ],
)
def test_a_key_that_no_target_depends_on(key: str, lost: bool) -> None:
    ran = closure(STAGES, ["sft@main"])
    assert without_effect(ran, [key]) == ([key] if lost else [])
