"""A dvc.lock of which a kill left only a part is fixed, and what was done is not done again."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from dvc.lock import make_lock

from tests.marks import slow_except
from tests.workspace import dvc, git, run

REPAIR = (sys.executable, "-m", "posttrain", "repair")


def repair(workspace: Path) -> str:
    return subprocess.run(REPAIR, cwd=workspace, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("share", slow_except([], [0.0, 0.4, 0.85]))
def test_a_damaged_lock_is_set_aside_and_nothing_is_run_again(own_workspace: Path, share: float) -> None:
    lock = own_workspace / "dvc.lock"
    whole = lock.read_bytes()
    assert "nothing to repair" in repair(own_workspace)
    # most cuts leave what DVC reads, with some dependency or stage less; one after a bare `path:` does not
    end = whole.index(b"- path:", int(share * len(whole))) + len(b"- path:") if share else 0
    lock.write_bytes(whole[:end])
    refused = dvc(own_workspace, "repro")
    assert refused.returncode != 0, "DVC reads it, so there is nothing to repair"
    assert "set aside as dvc.lock.damaged" in repair(own_workspace)
    done = dvc(own_workspace, "repro")
    assert done.returncode == 0, done.stdout
    ran = re.findall(r"Running stage '([^']*)'", done.stdout)
    # What only writes digests is not in the run cache, and the report neither, whose figures in git are no metrics.
    assert set(ran) <= {"code", "report"}
    assert lock.read_bytes() == whole


@pytest.mark.slow
def test_an_unfinished_git_merge_is_not_repaired(own_workspace: Path) -> None:
    lock = own_workspace / "dvc.lock"
    lock.write_bytes(lock.read_bytes() + b"<<<<<<< HEAD\n=======\n>>>>>>> other\n")
    before = lock.read_bytes()
    assert "nothing to repair" in repair(own_workspace)
    assert lock.read_bytes() == before


@pytest.mark.parametrize("part", [b"", b'{"read": {"/w'])
@pytest.mark.slow
def test_a_damaged_rwlock_is_removed_and_a_whole_one_is_not(own_workspace: Path, part: bytes) -> None:
    rwlock = own_workspace / ".dvc/tmp/rwlock"
    rwlock.write_bytes(part)
    refused = dvc(own_workspace, "repro")
    assert refused.returncode != 0 and "RWLock-file" in refused.stdout
    assert "rwlock was damaged" in repair(own_workspace)
    assert dvc(own_workspace, "repro").returncode == 0
    whole = rwlock.read_bytes()
    assert "nothing to repair" in repair(own_workspace)
    assert rwlock.read_bytes() == whole


@pytest.mark.slow
def test_temporary_files_of_dvc_are_removed_and_no_others(own_workspace: Path) -> None:
    folder = own_workspace / "results/sft"  # a dependency of the report
    trial, other = folder / ".gHeIkpW2m4Z-XwnI7iOUgA.tmp", folder / ".mine.tmp"
    for file in (trial, other):
        file.write_bytes(b"test")
    assert "up to date" in dvc(own_workspace, "status").stdout
    assert f"results/sft/{trial.name} was left" in repair(own_workspace)
    assert not trial.exists() and other.exists()


@pytest.mark.slow
def test_repair_waits_for_a_running_dvc(own_workspace: Path) -> None:
    """It writes dvc.lock in place: half of it is no damage."""
    lock = own_workspace / "dvc.lock"
    whole = lock.read_bytes()
    lock.write_bytes(b"schema: '2.0'\nstages:\n  sft:\n    cmd:")
    with make_lock(str(own_workspace / ".dvc/tmp/lock")):
        waiting = subprocess.Popen(REPAIR, cwd=own_workspace, stdout=subprocess.PIPE, text=True)
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(5)
        lock.write_bytes(whole)
    assert "nothing to repair" in waiting.communicate(timeout=30)[0]
    assert lock.read_bytes() == whole


@pytest.mark.slow
def test_a_flow_repairs_the_lock_first(own_workspace: Path) -> None:
    lock = own_workspace / "dvc.lock"
    whole = lock.read_bytes()
    git(own_workspace, "add", "dvc.lock")
    git(own_workspace, "commit", "--quiet", "-m", "all is done")
    lock.write_bytes(b"")
    (own_workspace / ".dvc/tmp/rwlock").write_bytes(b"{")
    done = run(own_workspace, sys.executable, "-m", "flows.pipeline", "sft@main")
    assert "set aside" in done.stdout and "rwlock was damaged" in done.stdout, done.stdout
    assert lock.read_bytes() == whole
