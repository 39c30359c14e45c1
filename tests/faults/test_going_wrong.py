"""Training that goes wrong ends with its cause, and with a last checkpoint from before."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import psutil
import pytest

from benchmarks.faults.damage import checkpoints_of
from benchmarks.faults.kills import prepared
from benchmarks.faults.processes import Ended, Server

SMALL = '"rollout": {"rounds": 40, "prompts": 4, "group_size": 4, "minibatches": 1}'
RUN = (
    '{"algorithm": "grpo", "start": "sft/main", "data": "two_step/prompts", "corpus": "none", "reward_model": "none", '
)
RUNAWAY = f'{RUN}"kl": {{"beta": 0.0001}}, "optimizer": {{"lr": 0.02, "schedule": "constant"}}'
COLLAPSE = (
    f'{RUN}"patience": null, "limits": {{"kl": null}}, "optimizer": {{"lr": 0.9, "schedule": "linear", "clip": 1.0e9}}'
)
EXPLOSION = (
    '{"start": "base/tiny", "data": "two_step/chat", "epochs": 5.0, "checkpoint_every": 1, '
    '"optimizer": {"lr": 0.9, "warmup": 0.9, "clip": 1.0e9}, '
    '"limits": {"gradient": 2.0, "steps": 2}}'
)


def run_with(stage_server: Server, workspace: Path, stage: str, path: list[str], value: str) -> Ended:
    given = {"change": "setting", "arguments": {"path": path, "value": value}}
    return stage_server.run(workspace, stage, before="benchmarks.faults.changes:apply", given=given)


@pytest.mark.parametrize(
    ("stage", "path", "value", "cause"),
    [
        pytest.param(
            "online grpo",
            ["online", "runs", "grpo"],
            f'{RUNAWAY}, {SMALL}, "checkpoint_every": 1, "limits": {{"kl": 2.0, "steps": 2}}}}',
            "too far from its reference",
            id="kl",
        ),
        pytest.param(
            "online grpo",
            ["online", "runs", "grpo"],
            f'{COLLAPSE}, {SMALL}, "checkpoint_every": 1}}',
            "entropy collapsed",
            marks=pytest.mark.slow,
            id="entropy",
        ),
        pytest.param("sft main", ["sft", "runs", "main"], EXPLOSION, "the gradient exploded", id="gradient"),
    ],
)
def test_a_run_that_goes_wrong_ends_with_the_cause(
    stage_server: Server, smoke_workspace: Path, tmp_path: Path, stage: str, path: list[str], value: str, cause: str
) -> None:
    workspace = prepared(smoke_workspace, tmp_path / "w")
    ended = run_with(stage_server, workspace, stage, path, value)
    assert ended.status == 1 and cause in ended.output, ended.output
    assert "Traceback" not in ended.output and "null (params.yaml)" in ended.output
    kept = [json.loads((folder / "state.json").read_text()) for folder in checkpoints_of(workspace)]
    assert kept, "no checkpoint from before is kept"
    for state in kept:
        newest = state["rows"][-1]
        assert newest.get("kl_k3", 0) <= 5 or '"kl": null' in value, newest
        assert newest.get("entropy", 1) >= 0.001, newest


@pytest.mark.slow
def test_a_limit_that_is_off_lets_the_run_go_on_from_the_kept_checkpoint(
    stage_server: Server, smoke_workspace: Path, tmp_path: Path
) -> None:
    workspace, path = prepared(smoke_workspace, tmp_path / "w"), ["online", "runs", "grpo"]
    run = f'{RUNAWAY}, {SMALL.replace("40", "8")}, "checkpoint_every": 1'
    tight = '"limits": {"kl": 2.0, "steps": 2}'
    assert run_with(stage_server, workspace, "online grpo", path, f"{run}, {tight}}}").status == 1
    off = '"limits": {"kl": null, "entropy": null, "gradient": null}'
    ended = run_with(stage_server, workspace, "online grpo", path, f"{run}, {off}}}")
    assert ended.status == 0 and "resumes from the checkpoint" in ended.output, ended.output


@pytest.mark.slow
def test_a_run_that_will_not_fit_is_refused_before_it_begins(
    stage_server: Server, smoke_workspace: Path, tmp_path: Path
) -> None:
    workspace = prepared(smoke_workspace, tmp_path / "w")
    ended = run_with(stage_server, workspace, "sft main", ["sft", "runs", "main", "limits"], '{"memory": 1.0e-9}')
    assert ended.status == 1 and "GB more memory" in ended.output and "limits.memory" in ended.output, ended.output
    assert not checkpoints_of(workspace)


def little_memory(more: int) -> None:
    """In the stage's process: so much memory beyond what it has already."""
    has = psutil.Process().memory_info().vms
    resource.setrlimit(resource.RLIMIT_AS, (has + more, has + more))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "short", "samples"),
    [
        ("completions sft", "prompts: 20, samples: 2", 20_000),
        ("data_samples compared", "prompts: 30, heldout_prompts: 10", 2_000),  # more are refused before sampling
    ],
)
def test_a_stage_that_runs_out_of_memory_says_which_knobs_lower_it(
    stage_server: Server, smoke_workspace: Path, tmp_path: Path, stage: str, short: str, samples: int
) -> None:
    workspace = prepared(smoke_workspace, tmp_path / "w")
    params = workspace / "params.yaml"
    many = f"samples: {samples}, sampling: {{rows: 1000000}}"
    told = params.read_text().replace(", samples: 6", "").replace(short, f"prompts: 20, {many}")
    assert many in told
    params.unlink()
    params.write_text(told)
    named = "tests.faults.test_going_wrong:little_memory"
    ended = stage_server.run(workspace, stage, before=named, given={"more": 900_000_000})
    assert ended.status == 1 and "the memory ran out" in ended.output and "sampling.rows" in ended.output, ended.output
    assert "Traceback" not in ended.output
