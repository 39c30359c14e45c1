"""Every reward of the catalog in real runs, by `dvc repro` and as a Prefect flow: both give the same policies."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from ruamel.yaml import YAML

from posttrain.rewards.catalog import REWARDS
from tests.pipeline.rewards.judge.conftest import Endpoint, _endpoint, endpoint  # noqa: F401  fixtures
from tests.pipeline.rewards.judge.models import parrot_folder
from tests.pipeline.serve.served import Served
from tests.workspace import dvc, run

OWN = """
from posttrain.rewards.reward import rule


@rule()
def brief(rollout, options):
    return max(0.0, 1 - len(rollout.text) / 100)
"""
RUN: dict[str, Any] = {
    "algorithm": "grpo",
    "start": "sft/main",
    "data": "two_step/prompts",
    "corpus": "none",
    "reward_model": "none",
    "rollout": {"rounds": 2, "prompts": 8, "group_size": 4, "minibatches": 2},
}
NUMBER = "(-?[0-9]+)"
RUNS: dict[str, dict[str, Any]] = {
    "forms": {
        "reward_model": "reward/main",
        "reward": {
            "correct": 1.0,
            "format": {"gate": True},
            "language": {"weight": 0.1, "script": "latin"},
            "length": {"weight": 0.1, "target": 12, "width": 20},
            "overlong": 0.1,
            "repetition": {"weight": 0.1, "n": 2},
            "regex": {"weight": 0.1, "pattern": "####"},
            "json_schema": {"weight": 0.1, "schema": {"type": "integer"}},
            "model": {"weight": 0.1, "normalise": True},
            "my_rewards:brief": 0.1,
        },
    },
    "judged": {
        "reward": {
            "correct": 1.0,
            "judge": {"weight": 0.5, "key": "JUDGE_KEY"},
            "likelihood": {"weight": 0.01, "key": "JUDGE_KEY"},
        }
    },
    "served": {"reward": {"correct": 1.0, "endpoint": {"weight": 0.5, "model": "m"}}},
    "steps": {
        "reward": {
            "milestones": {"of": {"format": 1.0, "correct": 1.0}, "credits": [0.2, 0.8]},
            "cascade": {"of": {"correct": {"answer": "math", "form": "boxed"}, "my_rewards:brief": 1.0}},
        },
    },
    "math": {"reward": {"correct": {"answer": "math", "after": "####"}}},
    "exact": {"reward": {"correct": {"answer": "exact", "after": "####"}}},
    "pattern": {"reward": {"correct": {"answer": "regex", "pattern": f"#### {NUMBER}"}}},
    "game": {"data": "guess/prompts", "reward": {"turns": 1.0, "correct": 1.0}},
    "quiz": {
        "data": "mine/prompts",
        "reward": {
            "correct": {"answer": "choice"},
            "code": 0.5,
            "instructions": {"weight": 0.2, "count": "share"},
            "my_rewards:brief": 0.1,
        },
    },
}


def write_project(workspace: Path, judge: dict[str, str], classifier: str) -> None:
    """Add a table, a module and the runs."""
    (workspace / "custom/my_rewards.py").write_text(OWN, encoding="utf-8")
    (workspace / "my/data").mkdir(parents=True)
    rows = [
        {"prompt": f"What is {n} plus 1? (A) {n} (B) {n + 1}", "answer": "B", "tests": f"assert f() == {n + 1}"}
        for n in range(60)
    ]
    more = {"entry_point": "f", "instructions": [{"kind": "at_most", "count": 2}, {"kind": "no_commas"}]}
    text = "".join(f"{json.dumps(row | more)}\n" for row in rows)
    (workspace / "my/data/quiz.jsonl").write_text(text, encoding="utf-8")
    yaml, file = YAML(typ="safe", pure=True), workspace / "params.yaml"
    params = yaml.load(file.read_text(encoding="utf-8"))
    quiz = {"path": "quiz.jsonl", "info": ["tests", "entry_point", "instructions"]}
    params["data"]["tasks"]["guess"] = {"task": "guess", "documents": 40}
    params["data"]["files"] = {"mine": {"path": "my/data", "prompts": quiz}}
    runs: dict[str, Any] = {name: {**RUN, **json.loads(json.dumps(one))} for name, one in RUNS.items()}
    for part in ("judge", "likelihood"):
        runs["judged"]["reward"][part] |= judge
    runs["served"]["reward"]["endpoint"]["url"] = classifier
    params["online"]["runs"] = runs
    params["evaluate"]["policies"] = {name: f"online/{name}" for name in RUNS}
    file.write_text(json.dumps(params), encoding="utf-8")


@pytest.fixture
def judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """A served model that always gives the verdict 7."""
    model = parrot_folder(tmp_path / "parrot", "Verdict: 7")
    server = Served(model, tmp_path / "cache")
    monkeypatch.setenv("JUDGE_KEY", server.key)
    yield {"url": server.url, "model": str(model)}
    server.end()


def used() -> set[str]:
    """The rewards that the runs name, also inside others."""
    found = {name for one in RUNS.values() for name in one["reward"]}
    return found | {name for one in RUNS.values() for part in one["reward"].values() if isinstance(part, dict)
                    for name in part.get("of", {})}  # fmt: skip


def test_every_reward_has_a_run() -> None:
    assert used() >= set(REWARDS)


@pytest.mark.slow
def test_every_reward_trains_a_policy_by_dvc_and_as_a_flow(
    own_workspace: Path,
    tmp_path: Path,
    judge: dict[str, str],
    endpoint: Endpoint,  # noqa: F811
) -> None:
    write_project(own_workspace, judge, endpoint.url.replace("/v1", "/classify"))
    flowing = tmp_path / "flowing"
    shutil.copytree(own_workspace, flowing, symlinks=True)
    for folder, command in ((own_workspace, ("dvc", "repro")), (flowing, ("flows.pipeline",))):
        done = run(folder, sys.executable, "-m", *command)
        assert done.returncode == 0, done.stdout[-6000:]
    for name, one in RUNS.items():
        curve = pl.read_csv(own_workspace / f"plots/online/{name}.csv")
        assert all(curve[f"reward_{part}"].is_finite().all() for part in one["reward"])
        assert (own_workspace / f"results/{name}/metrics.json").is_file()
        model = f"models/online/{name}/model.safetensors"
        assert (own_workspace / model).read_bytes() == (flowing / model).read_bytes(), name
    assert dvc(flowing, "status").stdout.strip().endswith("up to date.")
