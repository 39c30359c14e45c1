"""Checkpoints that are damaged or foreign, a disk that is full, and two runs at once."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from benchmarks.faults.damage import FAULTS, Bench, can_mount, checkpoints_of, full_tmpfs, two_at_once
from benchmarks.faults.kills import digests, outputs
from benchmarks.faults.processes import Server
from tests.marks import slow_except

QUICK = ("newest checkpoint damaged", "all checkpoints damaged")


@pytest.fixture(scope="module")
def bench(stage_server: Server, smoke_workspace: Path, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(stage_server, smoke_workspace, tmp_path_factory.mktemp("bench"))


@pytest.mark.parametrize("name", slow_except(QUICK, FAULTS))
def test_a_fault_is_told_and_the_next_run_ends_with_the_same_bytes(bench: Bench, name: str) -> None:
    fault, _, _ = FAULTS[name]
    if fault is full_tmpfs and not can_mount():
        pytest.skip("this machine does not let us mount a small file system")
    for seed in range(1 if fault in (full_tmpfs, two_at_once) else 3):
        assert fault(bench, seed), f"seed {seed}"


@pytest.mark.slow
def test_checkpoints_stay_until_dvc_has_recorded_the_outputs(bench: Bench) -> None:
    """Finished but not in dvc.lock: the next run needs no step. In dvc.lock: the next stage to start removes them."""
    workspace = bench.copy()
    assert len(checkpoints_of(workspace)) == 2, "the last two are kept"
    again = bench.server.run(workspace, bench.stage)
    assert re.search(r"resumes from the checkpoint at step (\d+) of \1\b", again.output), again.output
    assert digests(workspace) == bench.expected
    mark = next((workspace / "checkpoints").rglob("done")).read_text()
    lock = workspace / "dvc.lock"
    lock.write_text(f"{lock.read_text()}\n# {mark}\n")
    assert bench.server.run(workspace, "completions sft").status == 0
    assert not checkpoints_of(workspace)


@pytest.mark.slow
def test_checkpoints_of_an_unfinished_run_stay_when_one_with_other_parameters_saves(bench: Bench) -> None:
    """Those of a finished run go."""
    workspace = bench.copy()
    (finished,) = {folder.parent for folder in checkpoints_of(workspace)}
    unfinished = Path(shutil.copytree(finished, finished.with_name("0" * 16)))
    (unfinished / "done").unlink()
    params = workspace / "params.yaml"
    params.write_text(params.read_text().replace("epochs: 0.25", "epochs: 0.26"))
    assert bench.server.run(workspace, bench.stage).status == 0
    left = {folder.parent for folder in checkpoints_of(workspace)}
    assert len(left) == 2 and unfinished in left and finished not in left
    assert all((workspace / out).exists() for out in outputs(bench.stage))
