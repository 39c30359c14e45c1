"""Offline runs: what they refuse, what they learn from, and that a held-out score rises without sampling."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from ruamel.yaml import YAML

from benchmarks.faults.kills import prepared
from benchmarks.faults.processes import Server
from posttrain.errors import DataError, ParamsError
from posttrain.online.stored import LoggedSource, logged_rollouts
from posttrain.pipeline.checks.params_schema import check_params
from posttrain.pipeline.runs.external import RolloutsRun
from posttrain.pipeline.runs.offline import OFFLINE, OfflineRun, need_tokens
from posttrain.pipeline.runs.stored_rollouts import StoredRollouts
from posttrain.settings.params import check
from tests.distributions import install
from tests.library.models.tiny import tiny_folder
from tests.pipeline.online.test_rollout_log import logged

GIVEN = {"start": "sft/main", "data": "online/grpo", "correction": "truncate"}


def run_of(algorithm: str = "grpo", **over: Any) -> OfflineRun:
    row = OFFLINE[algorithm].row.merged({"algorithm": algorithm, **GIVEN, **over})
    return check(OfflineRun, row, where="offline.runs.a")


@pytest.mark.parametrize(
    ("algorithm", "over", "expected"),
    [
        ("grpo", {"correction": "none"}, "offline.runs.a.correction = none: the rollouts come from other policies"),
        ("dapo", {}, "Set resample: 0 and overlong: null"),
        ("gdpo", {}, "an advantage over each reward needs the weights of the rewards"),
        ("trpo", {}, "Use update adamw"),
        ("grpo", {"data": "sft/main"}, "offline.runs.a.data"),
        (
            "grpo",
            {"template": {"enable_thinking": False}},
            "template has no effect, because stored rollouts contain tokens",
        ),
    ],
)
def test_what_rollouts_cannot_give_is_refused(algorithm: str, over: dict[str, Any], expected: str) -> None:
    with pytest.raises(ParamsError, match=re.escape(expected)):
        run_of(algorithm, **over)
    run_of("dapo", resample=0, overlong=None)
    run_of("ppo", optimizer={"critic_first": 0.1})


@pytest.mark.slow
def test_a_check_finds_a_run_that_stores_no_text(
    smoke_workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = YAML(typ="safe").load(smoke_workspace / "params.yaml")
    settings["offline"] = {"runs": {"logged": {"algorithm": "grpo", **GIVEN}}}
    for data, stored, expected in (
        ("online/grpo", "sampled", r"the run has rollouts: sampled, but the tokens of all rollouts are needed"),
        (
            "online/grop",
            "full",
            r"offline\.runs\.logged\.data = 'online/grop': no run samples these rollouts\. Did you",
        ),
        ("online/grpo", "full", None),
    ):
        settings["online"]["runs"]["grpo"]["rollouts"] = stored
        settings["offline"]["runs"]["logged"]["data"] = data
        YAML().dump(settings, Path("params.yaml"))
        if expected is None:
            assert "are right" in check_params()
        else:
            with pytest.raises(ParamsError, match=expected):
                check_params()


def test_rollouts_of_another_library_need_the_model_that_sampled_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The format is that of a plugin, which another distribution registers."""
    install(monkeypatch, tmp_path, "their-rollouts", {"readers theirs": "read"}, "def read(folder):\n    return []\n")
    given = {"command": "cp x {out}", "script": "x", "format": "theirs", "data": "none"}
    with pytest.raises(ParamsError, match=r"format: 'thairs' is unknown\. Did you mean 'theirs'"):
        check(RolloutsRun, {**given, "format": "thairs", "start": "base/a"}, where="external.rollouts.a")
    need_tokens(check(RolloutsRun, {**given, "start": "base/a"}, where="external.rollouts.a"), "offline.runs.a.data")
    with pytest.raises(ParamsError, match="start: none, so the tokenizer of its tokens is unknown"):
        need_tokens(check(RolloutsRun, {**given, "start": "none"}, where="external.rollouts.a"), "offline.runs.a.data")


@pytest.mark.slow
def test_an_epoch_has_every_scored_rollout_with_its_own_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = StoredRollouts(logged(tiny_folder(tmp_path / "tiny"), tmp_path, monkeypatch), "offline")
    rollouts = logged_rollouts(stored.table(), stored.summary, stored.summary["vocabulary"], "here", grouped=True)
    source = LoggedSource(rollouts, 5, 1.0, seed=0)
    assert source.steps == 3
    found = []
    for batch in map(source.batch, range(3)):
        logps = batch.columns.tokens["old_logp"].split(batch.columns.lengths_B.tolist())
        rewards = batch.columns.rows["reward"].tolist()
        found += [
            (tuple(row.rest), reward, tuple(x.tolist()))
            for row, reward, x in zip(batch.rows, rewards, logps, strict=True)
        ]
    scored = stored.table().filter(pl.col("reward").is_not_null())
    columns = ("completion_ids", "reward", "logps")
    assert sorted(found) == sorted((tuple(a), b, tuple(c)) for a, b, c in scored.select(columns).iter_rows())
    with pytest.raises(DataError, match="sampled with a different tokenizer"):
        logged_rollouts(stored.table(), stored.summary, "other", "here", grouped=True)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_held_out_score_rises_by_stored_rollouts_alone(
    stage_server: Server, smoke_workspace: Path, tmp_path: Path, seed: int
) -> None:
    """Offline GRPO from the SFT model learns half or more of what the run gained whose rollouts it has."""
    workspace = prepared(smoke_workspace, tmp_path / "w")
    settings = YAML(typ="safe").load(smoke_workspace / "params.yaml")
    settings["seed"] = seed
    settings["offline"] = {
        "runs": {
            "logged": {
                "algorithm": "grpo", **GIVEN, "groups": 8, "epochs": 2.0, "kl": {"beta": 0.02},
                "optimizer": {"lr": 4e-4, "schedule": "linear"},
            }
        }
    }  # fmt: skip
    settings["evaluate"]["policies"] = {"sft": "sft/main", "grpo": "online/grpo", "logged": "offline/logged"}
    YAML().dump(settings, workspace / "params.yaml")
    shutil.rmtree(workspace / "rollouts")
    measured = [f"{stage} {name}" for name in ("sft", "grpo", "logged") for stage in ("completions", "evaluate")]
    for stage in ("online grpo", "offline logged", *measured):
        ended = stage_server.run(workspace, stage)
        assert ended.status == 0, ended.output
    score = {
        name: json.loads((workspace / f"results/{name}/metrics.json").read_text())["pass_at_1"]
        for name in ("sft", "grpo", "logged")
    }
    print(seed, score)
    assert score["logged"] - score["sft"] > 0.5 * (score["grpo"] - score["sft"]) > 0.05, score
