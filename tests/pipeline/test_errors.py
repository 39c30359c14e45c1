"""What a person sees who made a mistake: what, where and how to fix it, and nothing half-written."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from benchmarks.faults.processes import Server
from tests.marks import slow_except
from tests.workspace import ROOT, make_workspace, run
from tests.workspace import stage as run_stage

STAGES = sorted(file.stem for file in (ROOT / "stages").glob("[a-z]*.py"))


@pytest.mark.parametrize("stage", slow_except(["sft"], STAGES))
def test_every_stage_explains_itself(smoke_workspace: Path, stage: str) -> None:
    done = run_stage(smoke_workspace, stage, "--help")
    assert done.returncode == 0
    assert f"posttrain run {stage}" in done.stdout and "params.yaml" in done.stdout


@pytest.fixture(scope="module")
def workspace(smoke_workspace: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the finished pipeline for all mistakes in params.yaml."""
    return Path(shutil.copytree(smoke_workspace, tmp_path_factory.mktemp("errors") / "workspace", symlinks=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "old", "new", "expected"),
    [
        ("sft main", "epochs: 3.0", "epoch: 3.0", ["sft.runs.main.epoch", "unknown key", "Did you mean 'epochs'?"]),
        ("sft main", "epochs: 3.0", "epochs: many", ["sft.runs.main.epochs", "'many'", "valid number"]),
        ("sft main", "epochs: 3.0", "epochs: -1", ["sft.runs.main.epochs", "-1", "greater than 0"]),
        ("sft main", "epochs: 3.0", "epochs: .nan", ["sft.runs.main.epochs", "finite number"]),
        ("sft main", "epochs: 3.0", "epochs: 3.0\n      epochs: 4", ["params.yaml", "duplicate key"]),
        (
            "online grpo",
            "group_size: 8",
            "group_size: 1",
            ["rollout.group_size = 1", "compares the samples of a group", "reinforce"],
        ),
        ("online grpo", "algorithm: grpo", "algorithm: gropo", ["gropo", "Did you mean 'grpo'?"]),
        ("online grpo", "beta: 0.02", "estimator: k1", ["k1 in the loss", "expectation 0", "k3"]),
        ("online grpo", "{correct: 1.0", "{corect: 1.0", ["unknown reward 'corect'", "Did you mean 'correct'?"]),
        (
            "online grpo",
            "start: sft/main\n      data: two_step/prompts",
            "start: ../sft\n      data: two_step/prompts",
            ["start", "../sft"],
        ),
        (
            "preference dpo",
            "beta: 0.1",
            "desirable: 2.0",
            ["loss.desirable: not an option of type dpo", "type bco, kto"],
        ),
        ("online grop", "", "", ["no section 'grop'", "Did you mean 'grpo'?"]),
        ("evaluate ../../etc", "", "", ["is not a valid name for a run"]),
    ],
)
def test_a_wrong_parameter_stops_the_stage_before_any_work(
    stage_server: Server, workspace: Path, stage: str, old: str, new: str, expected: list[str]
) -> None:
    params = workspace / "params.yaml"
    text = params.read_text()
    assert old in text
    params.write_text(text.replace(old, new, 1))
    before = _files(workspace)
    ended = stage_server.run(workspace, stage)
    params.write_text(text)
    assert ended.status == 1, ended.output
    assert "Traceback" not in ended.output
    for words in expected:
        assert words in ended.output, ended.output
    assert _files(workspace) == before


@pytest.mark.slow
def test_a_damaged_table_is_named(own_workspace: Path) -> None:
    table = own_workspace / "data/two_step/chat.parquet"
    data = table.read_bytes()
    table.unlink()
    table.write_bytes(data[: len(data) // 2])
    done = run_stage(own_workspace, "sft", "main")
    assert done.returncode == 1
    assert "data/two_step/chat.parquet" in done.stdout and "Traceback" not in done.stdout


@pytest.mark.slow
def test_repair_names_the_mistake_in_params_yaml(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path / "w", ROOT / "recipes/smoke.yaml")
    params = workspace / "params.yaml"
    params.write_text(params.read_text().replace("      start: base/tiny\n", ""))
    done = run(workspace, sys.executable, "-m", "posttrain", "repair")
    assert done.returncode == 1
    assert done.stdout.startswith("error: params.yaml: sft.runs.main.start is missing. Write the start model")
    assert len(done.stdout.splitlines()) == 1, done.stdout


def _files(workspace: Path) -> dict[str, int]:
    return {
        str(path.relative_to(workspace)): path.stat().st_mtime_ns
        for path in workspace.rglob("*")
        if path.is_file()
        and "__pycache__" not in path.parts
        and not {".dvc", ".held", "logs"} & set(path.parts)
        and path.name != "params.yaml"
    }
