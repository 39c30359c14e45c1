"""Kills `dvc repro` itself, alone or with all that it started, and runs it again."""

from __future__ import annotations

import contextlib
import difflib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from benchmarks.faults.kills import PARAMS, PRODUCTS, UNCHECKPOINTED, Tally, digests
from tests.workspace import dvc, environment, git, run

STAGES = ("sft@main", "online@ppo", "data_samples@compared")
ALONE, GROUP, COMMIT = (
    "dvc alone, while the stage ran",
    "dvc and the stage together, while the stage ran",
    "dvc, between the stage's end and its record in dvc.lock",
)
MOMENTS = (ALONE, GROUP, COMMIT)
RESTORE = "dvc, while it took finished stages from its cache"
COMMIT_S = 0.3
TRIES = 5


def copied(smoke: Path, target: Path) -> Path:
    """The finished smoke pipeline, DVC and all, under the parameters of the fault tests: every stage is stale."""
    shutil.copytree(smoke, target, symlinks=True)
    shutil.copyfile(PARAMS, target / "params.yaml")
    done = dvc(target, "repro", "--single-item", "code")  # `--single-item STAGE` alone would find no code of a new run
    assert done.returncode == 0, done.stdout
    return target


def torture_dvc(smoke: Path, folder: Path, stage: str, moments: list[str], seed: int) -> Tally:
    """One kill of DVC for each of the moments, every time from the same beginning."""
    rng, tally = random.Random(f"{seed} {stage}"), Tally(f"dvc repro {stage}")
    whole = copied(smoke, folder / "whole")
    process = _started(whole, "--single-item", stage)
    seconds = _stage_seconds(process)
    assert process.wait() == 0, f"dvc repro {stage} fails even when nobody kills it"
    for moment in moments:
        workspace = _killed(smoke, folder / "cut", stage, moment, seconds, rng)
        tally.kills[moment] += 1
        again = _again(workspace, tally, "--single-item", stage)
        resumed = "resumes from the checkpoint" in again.stdout
        tally.resumed += resumed
        kept = resumed or "is cached - skipping run" in again.stdout
        if moment == COMMIT and stage.partition("@")[0] not in UNCHECKPOINTED and not kept:
            tally.faults.append(f"finished work was lost: {again.stdout[-2000:]}")
        _compare(workspace, whole, moment, tally)
    return tally


def torture_restore(smoke: Path, folder: Path, kills: int, seed: int) -> Tally:
    """Kill DVC while it takes the whole pipeline from its run cache, every time from nothing."""
    rng, tally = random.Random(f"{seed} {RESTORE}"), Tally("dvc repro of all stages")
    workspace, seconds = folder / "cut", 0.0
    for number in range(-1, kills):
        shutil.copytree(smoke, workspace, symlinks=True)
        for name in PRODUCTS:
            shutil.rmtree(workspace / name)
        git(workspace, "checkout", "--quiet", "--", ".")  # what of these folders git keeps
        (workspace / "dvc.lock").unlink()
        began = time.monotonic()
        process = _started(workspace)
        if number < 0:
            assert process.wait() == 0, "dvc repro fails even when nobody kills it"
            seconds = time.monotonic() - began
        else:
            while not (workspace / "dvc.lock").exists() and process.poll() is None:
                time.sleep(0.005)
            time.sleep(max(seconds - (time.monotonic() - began), 0) * rng.random())
            process.kill()
            process.wait()
            tally.kills[RESTORE] += 1
            _again(workspace, tally)
        _compare(workspace, smoke, RESTORE, tally)
    return tally


def _again(workspace: Path, tally: Tally, *what: str) -> subprocess.CompletedProcess[str]:
    """The next run, and another one after `repair` where DVC cannot read what the kill left."""
    again = dvc(workspace, "repro", *what)
    repaired = run(workspace, sys.executable, "-m", "posttrain", "repair").stdout
    if "was damaged" in repaired:
        again = dvc(workspace, "repro", *what)
    if again.returncode:
        tally.faults.append(again.stdout[-2000:])
    tally.repaired += "nothing to repair" not in repaired
    tally.compared += 1
    return again


def _compare(workspace: Path, whole: Path, moment: str, tally: Tally) -> None:
    """Every file must be as in the run that was not killed."""
    locks = [(place / "dvc.lock").read_text().splitlines() for place in (whole, workspace)]
    if locks[0] != locks[1]:
        tally.faults.append(
            "\n".join([f"{moment}: dvc.lock differs:", *difflib.unified_diff(*locks, lineterm="", n=1)])
        )
    if differing := dict(digests(workspace).items() ^ digests(whole).items()):
        tally.faults.append(f"{moment}: the outputs differ: {', '.join(sorted(differing))}")
    shutil.rmtree(workspace)


def _killed(smoke: Path, workspace: Path, stage: str, moment: str, seconds: float, rng: random.Random) -> Path:
    """A workspace in which DVC was killed at that moment; a kill that came too late is tried again and not counted."""
    for _ in range(TRIES):
        copied(smoke, workspace)
        lock = (workspace / "dvc.lock").read_text()
        process = _started(workspace, "--single-item", stage)
        while not _running(process) and process.poll() is None:
            time.sleep(0.005)
        if moment == COMMIT:
            _stage_seconds(process)
        time.sleep((COMMIT_S if moment == COMMIT else seconds) * rng.random())
        in_time = process.poll() is None and _running(process) == (moment != COMMIT)
        with contextlib.suppress(ProcessLookupError):
            if moment == GROUP:
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
        process.wait()
        if in_time and (workspace / "dvc.lock").read_text() == lock:
            return workspace
        shutil.rmtree(workspace)
    raise RuntimeError(f"{TRIES} kills of dvc repro {stage} came too late for: {moment}")


def _started(workspace: Path, *what: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "dvc", "repro", *what],
        cwd=workspace, env=environment(), start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def _stage_seconds(process: subprocess.Popen[bytes]) -> float:
    """Wait until the stage has come and gone; how long it was there."""
    began: float | None = None
    while process.poll() is None:
        running = _running(process)
        if began is not None and not running:
            return time.monotonic() - began
        if running and began is None:
            began = time.monotonic()
        time.sleep(0.005)
    raise RuntimeError("dvc ended without a stage")


def _running(process: subprocess.Popen[bytes]) -> bool:
    """Whether DVC has a stage at work."""
    try:
        children = psutil.Process(process.pid).children(recursive=True)
        return any("stages." in " ".join(child.cmdline()) for child in children)
    except psutil.Error:
        return False
