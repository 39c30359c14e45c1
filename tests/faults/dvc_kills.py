"""Kills `dvc repro` itself, alone or with all that it started, and runs it again."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from tests.faults.kills import PARAMS, Tally, digests
from tests.workspace import dvc, environment

STAGES = ("sft", "online@ppo", "pairs")
ALONE, GROUP, COMMIT = (
    "dvc alone, while the stage ran",
    "dvc and the stage together",
    "dvc, while it committed the outputs",
)
MOMENTS = (ALONE, GROUP, COMMIT)
COMMIT_S = 0.3


def copied(smoke: Path, target: Path) -> Path:
    """The finished smoke pipeline, DVC and all, under the parameters of the fault tests: every stage is stale."""
    shutil.copytree(smoke, target, symlinks=True)
    shutil.copyfile(PARAMS, target / "params.yaml")
    return target


def torture_dvc(smoke: Path, folder: Path, stage: str, moments: list[str], seed: int) -> Tally:
    """One kill of DVC for each of the moments, every time from the same beginning."""
    rng, tally = random.Random(f"{seed} {stage}"), Tally(f"dvc repro {stage}")
    whole = copied(smoke, folder / "whole")
    began = time.monotonic()
    done = dvc(whole, "repro", "--single-item", stage)
    seconds = time.monotonic() - began
    assert done.returncode == 0, done.stdout
    for number, moment in enumerate(moments):
        workspace = copied(smoke, folder / f"cut{number}")
        tally.kills[moment if _kill(workspace, stage, moment, seconds * rng.random(), rng) else "too late"] += 1
        again = dvc(workspace, "repro", "--single-item", stage)
        tally.lives += 1
        tally.resumed += "goes on from the checkpoint" in again.stdout
        if again.returncode:
            tally.faults.append(again.stdout[-2000:])
        if (workspace / "dvc.lock").read_text() != (whole / "dvc.lock").read_text():
            tally.faults.append(f"{moment}: dvc.lock differs")
        if digests(workspace) != digests(whole):
            tally.faults.append(f"{moment}: the outputs differ")
        shutil.rmtree(workspace)
    return tally


def _kill(workspace: Path, stage: str, moment: str, seconds: float, rng: random.Random) -> bool:
    """Whether DVC was still at work when the kill came."""
    process = subprocess.Popen(
        [sys.executable, "-m", "dvc", "repro", "--single-item", stage],
        cwd=workspace, env=environment(), start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    if moment == COMMIT:
        _wait_for_the_stage(process)
        seconds = COMMIT_S * rng.random()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    late = process.poll() is not None
    with contextlib.suppress(ProcessLookupError):
        if moment == GROUP:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    process.wait()
    return not late


def _wait_for_the_stage(process: subprocess.Popen[bytes]) -> None:
    """Until the stage has come and gone."""
    seen = False
    while process.poll() is None:
        with contextlib.suppress(psutil.Error):
            lines = [" ".join(child.cmdline()) for child in psutil.Process(process.pid).children(recursive=True)]
            running = any("stages." in line for line in lines)
            if seen and not running:
                return
            seen = seen or running
        time.sleep(0.005)
