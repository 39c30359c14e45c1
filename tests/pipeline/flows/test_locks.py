"""What dead processes hold is freed, what living ones hold is waited for, and DVC's site cache is the owner's alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from posttrain.pipeline.lock.repair_dvc import repair_lock
from tests.pipeline.flows.project import PYTHON, Project

SLEEP = "import time; time.sleep(300)"
HOLD = """
import sys, time
from dvc.fs import localfs
from dvc.rwlock import rwlock
with rwlock(".dvc/tmp", localfs, " ".join(sys.argv), [], [sys.argv[1]], False):
    print("held", flush=True)
    time.sleep(float(sys.argv[2]))
"""


def hold(root: Path, pid: int, cmd: str) -> Path:
    """An rwlock in which this process writes prepare.txt, as DVC would have left it."""
    rwlock = root / ".dvc/tmp/rwlock"
    rwlock.parent.mkdir(exist_ok=True)
    rwlock.write_text(json.dumps({"write": {str(root / "prepare.txt"): {"pid": pid, "cmd": cmd}}, "read": {}}))
    return rwlock


def refused(project: Project) -> bool:
    command = [sys.executable, "-m", "dvc", "repro", "prepare"]
    done = subprocess.run(command, cwd=project.root, env=project.env, capture_output=True, text=True)
    return done.returncode != 0 and "is busy, it is being blocked by" in done.stdout + done.stderr


@pytest.mark.slow
def test_a_number_that_another_process_has_now_blocks_nobody(bare: Project) -> None:
    """What a restarted container finds: the number of the DVC that was killed belongs to somebody else."""
    with subprocess.Popen(["sleep", "300"]) as other:
        hold(bare.root, other.pid, "/somewhere/dvc/__main__.py repro")
        assert refused(bare)
        said = repair_lock(bare.root)
        assert (
            f".dvc/tmp/rwlock named processes that have ended: {other.pid} (/somewhere/dvc/__main__.py repro)" in said
        )
        assert not refused(bare)
        assert repair_lock(bare.root) == ""
        other.kill()


def test_the_same_command_started_later_is_another_process(bare: Project) -> None:
    with subprocess.Popen([sys.executable, "-c", SLEEP, "repro"]) as other:
        rwlock = hold(bare.root, other.pid, "/somewhere/dvc/__main__.py repro")
        assert repair_lock(bare.root) == "", "it may be the DVC that took the lock"
        os.utime(rwlock, (time.time() - 60, time.time() - 60))
        assert "named processes that have ended" in repair_lock(bare.root)
        other.kill()


@pytest.mark.slow
def test_a_process_that_nobody_has_waited_for_is_dead(bare: Project) -> None:
    gone = subprocess.Popen(["true"])
    os.waitid(os.P_PID, gone.pid, os.WEXITED | os.WNOWAIT)
    hold(bare.root, gone.pid, "true")
    assert refused(bare)
    repair_lock(bare.root)
    assert not refused(bare)
    gone.wait()


def test_references_of_experiments_are_freed_too(bare: Project) -> None:
    hold(bare.root, os.getpid(), "/somewhere/dvc/__main__.py exp run --temp -n x")
    (bare.root / ".dvc/tmp/exps").mkdir()
    (bare.root / ".dvc/tmp/rwlock").rename(bare.root / ".dvc/tmp/exps/rwlock")
    assert ".dvc/tmp/exps/rwlock named" in repair_lock(bare.root)
    (bare.root / ".dvc/tmp/exps/rwlock").write_text('{"write": [1]}')
    assert ".dvc/tmp/exps/rwlock was damaged" in repair_lock(bare.root)


@pytest.mark.slow
def test_a_living_dvc_keeps_its_locks_and_a_flow_waits_for_it(bare: Project) -> None:
    bare.trouble(prepare={"seconds": 6})
    repro = subprocess.Popen(
        [sys.executable, "-m", "dvc", "repro", "prepare"], cwd=bare.root, env=bare.env, stdout=subprocess.DEVNULL
    )
    bare.wait_begun("prepare")
    before = (bare.root / ".dvc/tmp/rwlock").read_bytes()
    assert "prepare.txt" in before.decode()
    assert repair_lock(bare.root) == ""
    assert (bare.root / ".dvc/tmp/rwlock").read_bytes() == before
    ended = bare.run("prepare")
    assert repro.wait() == 0
    assert (ended.code, ended.states) == (0, {"prepare": "Cached"}), ended.err
    assert f"blocked by: (PID {repro.pid})" in ended.err and "Waiting until it has ended" in ended.err


@pytest.mark.slow
def test_a_stage_waits_for_a_dvc_that_came_while_the_flow_ran(project: Project) -> None:
    project.trouble(prepare={"seconds": 5})
    process = project.start("branch@left")
    project.wait_begun("prepare")
    words = [sys.executable, "-c", HOLD, str(project.root / "left.txt"), "14"]
    with subprocess.Popen(words, cwd=project.root, env=project.env, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        ended = project.finish(process)
    assert ended.states == {"prepare": "Completed", "branch@left": "Completed"}, ended.err
    assert "is busy, it is being blocked by" not in ended.err and ended.err.count("Waiting until it has ended") == 1


def site_cache(project: Project, folder: Path, env: dict[str, str] | None = None) -> Path:
    """Where a DVC that is started in this folder keeps its site cache, as it says itself."""
    command = [sys.executable, "-m", "dvc", "doctor"]
    done = subprocess.run(command, cwd=folder, env=env or project.env, capture_output=True, text=True, check=True)
    return Path(next(line for line in done.stdout.splitlines() if "site_cache_dir" in line).partition(": ")[2])


@pytest.mark.slow
def test_the_site_cache_is_in_the_clone_for_every_dvc(bare: Project, tmp_path: Path) -> None:
    root = bare.root
    site = root / ".dvc/tmp/site"
    assert not site_cache(bare, root).is_relative_to(root), "DVC's default is for the whole machine"
    repair_lock(root)
    for folder in (root, root / "sub"):
        assert site_cache(bare, folder).is_relative_to(site)
    assert site.stat().st_mode & 0o777 == 0o700
    assert not (root / "sub/.dvc").exists()
    # in the copies that experiments are run in too
    stage = f"stages:\n  doctor:\n    cmd: {PYTHON} -m dvc doctor > {tmp_path}/doctor\n"
    (root / "doctor").mkdir()
    (root / "doctor/dvc.yaml").write_text(stage)
    subprocess.run(["git", "add", "-A"], cwd=root, check=True)
    subprocess.run(["git", "commit", "-qm", "doctor"], cwd=root, check=True)
    bare.dvc("exp", "run", "--temp", "doctor/dvc.yaml:doctor")
    assert f"Repo.site_cache_dir: {site}/repo/" in (tmp_path / "doctor").read_text()
    moved = root.rename(tmp_path / "moved clone")
    repair_lock(moved)
    assert site_cache(bare, moved).is_relative_to(moved / ".dvc/tmp/site")
    assert not root.exists()
    (moved / ".dvc/config.local").write_text(f"[core]\n    site_cache_dir = {tmp_path}/mine\n")
    repair_lock(moved)
    assert site_cache(bare, moved).is_relative_to(tmp_path / "mine"), "another choice is the user's"


@pytest.mark.parametrize("words", [("exp", "run"), ("flows.sweep", "kl"), ("posttrain", "sweep")])
def test_what_killed_experiments_and_copies_left_is_removed_once_nobody_needs_it(
    bare: Project, words: tuple[str, str]
) -> None:
    copy = bare.root / ".dvc/tmp/exps/standalone/tmpa1b2c3"
    name = ".gHeIkpW2m4Z-XwnI7iOUgA.tmp"
    old, fresh = bare.root / f".dvc/cache/files/md5/ab/{name}", bare.root / f".dvc/cache/files/md5/cd/{name}"
    for file in (copy / "data/rows.parquet", old, fresh):
        file.parent.mkdir(parents=True)
        file.write_bytes(b"half")
    os.utime(old, (time.time() - 7200, time.time() - 7200))
    with subprocess.Popen([sys.executable, "-c", SLEEP, *words], cwd=bare.root) as experiment:
        assert repair_lock(bare.root) == f".dvc/cache/files/md5/ab/{name} was left by a DVC that was killed: removed"
        assert copy.exists(), "an experiment may be at work in it"
        experiment.kill()
    assert not old.exists() and fresh.exists()
    assert "standalone/tmpa1b2c3 was left by an experiment that was killed: removed" in repair_lock(bare.root)
    assert not copy.parent.exists()
