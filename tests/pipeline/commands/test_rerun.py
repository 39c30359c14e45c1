"""`posttrain replay`: the steps of a run can be had again from its rollouts, and a difference is named."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from pathlib import Path

import pytest

from benchmarks.faults.kills import RUNS, prepared
from benchmarks.faults.processes import Server
from posttrain.errors import DataError
from posttrain.isolation.library import library_command
from posttrain.pipeline.runs.stored_rollouts import StoredRollouts
from tests.workspace import ROOT, environment

FOLDERS = ("data", "models", "metrics", "plots", "records", "rollouts", "checkpoints", "timings")


def replay(workspace: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command, env = library_command("posttrain", "replay", *words), {**environment(), "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, cwd=workspace, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )


def files(workspace: Path) -> dict[str, str]:
    found = [file for name in FOLDERS for file in (workspace / name).rglob("*") if file.is_file()]
    return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in found}


@pytest.mark.slow
def test_a_replay_has_the_bits_of_the_run_and_changes_nothing(own_workspace: Path) -> None:
    before = files(own_workspace)
    done = replay(own_workspace, "grpo", "--step", "9")
    assert done.returncode == 0, done.stdout
    assert "10 steps from the start on 320 rollouts" in done.stdout
    assert "loss and gradient norm of the steps 0 to 9 are those of the run, bit for bit" in done.stdout
    assert files(own_workspace) == before

    params = own_workspace / "params.yaml"
    params.write_text(params.read_text().replace("lr: 4.0e-4, schedule: linear", "lr: 4.1e-4, schedule: linear"))
    done = replay(own_workspace, "grpo", "--step", "9")  # the first step has the same gradient, and moves further
    assert done.returncode == 1 and "step 1 differs: " in done.stdout and "the 1 steps before it" in done.stdout
    assert files(own_workspace) == before


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"rollouts": "sampled"}, "replay needs all rollouts, but these were stored with rollouts: sampled"),
        ({"text_ends_at_round": 3}, "from round 3 on no text: rollouts_gb was reached"),
        ({"format": 2}, "made by a newer posttrain"),
        ({"rollouts": None}, "stored with rollouts: None"),
        ({}, "some of the rollouts are missing"),
    ],
)
def test_rollouts_without_text_are_refused(tmp_path: Path, change: dict[str, object], expected: str) -> None:
    with pytest.raises(DataError, match=r"no rollouts can be read here.* Run it: `dvc repro`"):
        StoredRollouts(tmp_path, "replay")
    summary = {"format": 1, "rollouts": "full", "text_ends_at_round": None, "rows": 8, **change}
    (tmp_path / "run.json").write_text(json.dumps(summary))
    with pytest.raises(DataError, match=re.escape(expected)):
        StoredRollouts(tmp_path, "replay")


@pytest.mark.slow
@pytest.mark.parametrize("name", [*(f"online/{one}" for one in RUNS["online"]), "distill/gkd"])
def test_every_kind_of_run_can_be_replayed(
    stage_server: Server, smoke_workspace: Path, tmp_path: Path, name: str
) -> None:
    """Critics, replay buffers, pairs, mixtures, dynamic sampling: all that is computed from rollouts has the same bits.

    The run has not been recorded by DVC, so its last checkpoint is there; the replay of the last step starts from it.
    """
    workspace = prepared(smoke_workspace, tmp_path / "w")
    (workspace / "dvc.lock").unlink()  # it records the smoke recipe's run of the same name, with other settings
    ended = stage_server.run(workspace, name.replace("/", " "))
    assert ended.status == 0, ended.output
    (checkpoints,) = (workspace / "checkpoints" / name).glob("*")
    checkpoints.rename(checkpoints.with_name("aside"))
    done = replay(workspace, name)
    assert done.returncode == 0 and "steps from the start" in done.stdout, done.stdout
    checkpoints.with_name("aside").rename(checkpoints)
    last = len(json.loads((workspace / "rollouts" / name / "run.json").read_text())["steps"]) - 1
    done = replay(workspace, name, "--step", str(last))
    assert done.returncode == 0 and f"1 steps from the checkpoint at step {last}" in done.stdout, done.stdout
