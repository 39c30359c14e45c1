"""Rewards in real runs: composed ones, your own in worker processes, and runs that a reward has to stop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from ruamel.yaml import YAML

from posttrain.settings.plain import merge
from tests.workspace import Finished, dvc

OWN = '''
import os
import time

from posttrain.rewards.reward import Examples, NoOptions, rule
from posttrain.rollout import Score


def draw(rollout):
    """A number that the completion decides, from 0 to 99."""
    return sum(rollout.row.rest) * 31 % 100


@rule(shaping=True)
def brief(rollout, options):
    """1 for no words, falling to 0; some calls crash, hang or raise."""
    if draw(rollout) == 1:
        os._exit(3)
    if draw(rollout) == 2:
        time.sleep(60)
    if draw(rollout) in (3, 4):
        raise OSError("the server is down")
    return max(0.0, 1 - len(rollout.text.split()) / 30)


async def unlike_the_others(rollouts):
    texts = [one.text for one in rollouts]
    return [float(texts.count(text) == 1) for text in texts]


def known(prompt, options):
    return Examples([f"#### {prompt.answer}"], ["#### 999999"])


@rule(NoOptions, examples=known)
def upside_down(rollout, options):
    """Scores wrong answers 1 and right ones 0."""
    return float(f"#### {rollout.prompt.answer}" not in rollout.text)


@rule()
def same(rollout, options):
    return 0.5


@rule()
def down(rollout, options):
    return Score(0.0, "infrastructure", "the server is down")
'''
RUN: dict[str, Any] = {
    "algorithm": "grpo",
    "start": "sft/main",
    "data": "two_step/prompts",
    "corpus": "none",
    "reward_model": "none",
    "rollout": {"rounds": 2, "prompts": 8, "group_size": 8, "minibatches": 2},
}
COMPOSED: dict[str, Any] = {
    "format": {"gate": True},
    "milestones": {"of": {"format": 1.0, "correct": 1.0}, "credits": [0.2, 0.8]},
    "cascade": {"weight": 0.5, "of": {"correct": 1.0, "my_rewards:same": 1.0}},
    "my_rewards:brief": {"weight": 0.1, "timeout": 1.0},
    "my_rewards:unlike_the_others": {"weight": 0.1, "normalise": True},
}


def with_runs(workspace: Path, **runs: dict[str, Any]) -> None:
    """Write the rewards above, and add runs to params.yaml."""
    (workspace / "custom/my_rewards.py").write_text(OWN, encoding="utf-8")
    yaml, file = YAML(typ="safe", pure=True), workspace / "params.yaml"
    params = yaml.load(file.read_text(encoding="utf-8"))
    params["online"]["runs"] = {name: merge(RUN, run) for name, run in runs.items()}
    params["evaluate"]["policies"] = {"sft": "sft/main", **{name: f"online/{name}" for name in runs}}
    file.write_text(json.dumps(params), encoding="utf-8")


def stopped(workspace: Path, run: str) -> str:
    """What `dvc repro` printed for a run that must not end well."""
    done: Finished = dvc(workspace, "repro", f"online@{run}")
    assert done.returncode != 0, done.stdout
    assert not (workspace / f"models/online/{run}").exists()
    return done.stdout


@pytest.mark.slow
def test_a_run_with_composed_rewards_and_a_few_failures(own_workspace: Path) -> None:
    with_runs(own_workspace, composed={"reward": COMPOSED, "max_failed": 0.3})
    done = dvc(own_workspace, "repro", "evaluate@composed")
    assert done.returncode == 0, done.stdout
    curve = pl.read_csv(own_workspace / "plots/online/composed.csv")
    for name in ("format", "milestones", "cascade", "my_rewards:brief", "my_rewards:unlike_the_others"):
        assert curve[f"reward_{name}"].is_finite().all()
    assert curve["reward_my_rewards:brief"].is_between(0, 1, closed="right").all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("run", "said"),
    [
        (
            {"reward": {"my_rewards:upside_down": 1.0}},
            (
                "with a known score are scored wrong",
                "a right completion of prompt",
                "scores 0: '#### ",
                "docs/rewards.md#canaries",
            ),
        ),
        (
            {"reward": {"my_rewards:same": 1.0}, "patience": 2, "rollout": {"rounds": 6}},
            ("in the last 2 rounds the rewards of every group are equal", "patience = 2", "rollout.group_size"),
        ),
        (
            {"reward": {"correct": 1.0, "my_rewards:down": 0.1}},
            (
                "64 of 64 completions could not be scored",
                "infrastructure: the server is down",
                "Nothing is left to train on",
            ),
        ),
        (
            {"reward": {"correct": 1.0}, "rollout": {"rounds": 6, "sampling": {"max_tokens": 1}}, "patience": 2},
            ("are truncated: raise sampling.max_tokens",),
        ),
    ],
)
def test_a_run_that_a_reward_has_to_stop(own_workspace: Path, run: dict[str, Any], said: tuple[str, ...]) -> None:
    with_runs(own_workspace, bad=run)
    printed = stopped(own_workspace, "bad")
    for part in said:
        assert part in printed, printed


@pytest.mark.slow
def test_a_reward_model_that_starts_from_another_has_a_shift_of_its_own(own_workspace: Path) -> None:
    """With hardly a step it scores as the first one; the shift of the first must not count in its own."""
    yaml, file = YAML(typ="safe", pure=True), own_workspace / "params.yaml"
    params = yaml.load(file.read_text(encoding="utf-8"))
    runs = params["reward"]["runs"]
    runs["main"]["demonstrations"] = "two_step/chat"
    again = {"start": "reward/main", "epochs": 0.01, "optimizer": {"lr": 1e-9}, "watch": None}
    runs["second"], runs["third"] = {**runs["main"], **again}, {**runs["main"], **again, "demonstrations": "none"}
    file.write_text(json.dumps(params), encoding="utf-8")
    done = dvc(own_workspace, "repro", "reward")
    assert done.returncode == 0, done.stdout
    shifts = {}
    for name in runs:
        config = json.loads((own_workspace / f"models/reward/{name}/config.json").read_text())
        shifts[name] = config.get("reward_shift")
    assert abs(shifts["main"]) > 0.05 and shifts["third"] is None
    assert shifts["second"] == pytest.approx(shifts["main"], abs=1e-3)
