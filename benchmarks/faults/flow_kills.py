"""Kills a flow on the small pipeline: each of its stages, and what runs it while that stage is at work."""

from __future__ import annotations

import contextlib
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from benchmarks.faults.edits import replaced
from benchmarks.faults.ledger import Row
from benchmarks.faults.project import command, ended, made, products, started
from flows import server, temporary_server
from posttrain.pipeline.lock.digests import recorded
from tests.workspace import ROOT, environment, git

EDITS: dict[str, Callable[[Path], None]] = {
    "numbers": replaced("stages/numbers.py", "def main", "# a comment\ndef main"),
    "fit@a": replaced("params.yaml", "rate: 0.9", "rate: 0.8"),
    "fit@b": replaced("params.yaml", "rate: 0.5", "rate: 0.4"),
    "summary": replaced("stages/summary.py", '["score"]', '["score"] + 1'),
}
"""Stage -> the edit that makes it stale; the last three also change what it writes."""
STAGE, RECORD, FLOW, SERVER, ALL = (
    "the stage",
    "DVC, between the stage's end and its record in dvc.lock",
    "the flow's own process",
    "the flow's Prefect server",
    "the flow with all that it started",
)
AIMS = (STAGE, RECORD, FLOW, SERVER, ALL)
FAULTS = tuple(f"{stage}: {aim}" for stage in EDITS for aim in AIMS)
RECORD_S = 0.25
"""How long DVC takes to record a stage."""
TRIES = 8
PATIENCE_S = 120.0


class Base:
    """The finished project, what each edit makes of it, and a Prefect server that most runs share."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.template = made(folder / "template")
        shutil.copytree(ROOT / "flows", self.template / "flows", ignore=shutil.ignore_patterns("__pycache__"))
        first = command(self.template, "flows.pipeline", env=without_server())
        assert first.status == 0, first.output
        git(self.template, "add", "--all")
        git(self.template, "commit", "--quiet", "--message", "finished")
        self.whole: dict[str, Any] = {}
        self.seconds: dict[str, float] = {}
        for stage in EDITS:
            self._reference(stage)
        home = server.prepare(folder)
        temporary_server.start_temporary(home).wait()  # ends with this process

    def copy(self, seed: int, stage: str) -> Path:
        """The finished project with one stage stale."""
        place = self.folder / f"trial{seed}"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(self.template, place, symlinks=True)
        EDITS[stage](place)
        return place

    def wrong(self, place: Path, stage: str) -> str:
        """What is not as it would be had nothing been killed; empty if all is."""
        if result(place) != self.whole[stage]:
            return "SILENT: outputs or dvc.lock differ"
        status = command(place, "dvc", "status", "--json").output.strip()
        if status != "{}":
            return f"SILENT: dvc status: {status[-600:]}"
        found = command(place, "posttrain", "repair", "verify")
        if found.status:
            return f"verify: {found.output[-600:]}"
        return f"left running: {left}" if (left := left_running(place)) else ""

    def _reference(self, stage: str) -> None:
        place = self.copy(-1, stage)
        process = started(place, "dvc", "repro")
        worker = wait_for(process, place, stage)
        began = time.monotonic()
        psutil.wait_procs([worker])
        self.seconds[stage], done = time.monotonic() - began, ended(process)
        assert done.status == 0, done.output
        self.whole[stage] = result(place)
        shutil.rmtree(place)


class Flows(Base):
    """Kills of `python -m flows.pipeline`."""

    def trial(self, seed: int, fault: str = "") -> Row:
        """One kill, then one more run of the flow."""
        rng = random.Random(f"flow {seed}")
        fault = fault or FAULTS[seed % len(FAULTS)]
        stage, _, aim = fault.partition(": ")
        env = without_server() if aim in (SERVER, ALL) else environment()
        place, output = self._killed(seed, stage, aim, env, rng)
        again = command(place, "flows.pipeline", env=env)
        outcome = how(again.output, stage)
        wrong = self.wrong(place, stage) if again.status == 0 else f"the next run failed: {again.output[-900:]}"
        if not wrong and aim == RECORD and stage.startswith("fit") and outcome == "run again":
            wrong = f"finished work was lost: {again.output[-900:]}"
        shutil.rmtree(place)
        return {"fault": fault, "outcome": outcome, "wrong": wrong or output}

    def _killed(self, seed: int, stage: str, aim: str, env: dict[str, str], rng: random.Random) -> tuple[Path, str]:
        """The project after a kill in time, and what was wrong with how the flow ended."""
        for _ in range(TRIES):
            place = self.copy(seed, stage)
            lock = recorded(place).get(stage)
            process = started(place, "flows.pipeline", env=env)
            worker = wait_for(process, place, stage)
            if aim == RECORD:
                psutil.wait_procs([worker])
                time.sleep(RECORD_S * rng.random())
            else:
                time.sleep(self.seconds[stage] * rng.random())
            hit = (aim == RECORD or worker.is_running()) and shoot(place, process.pid, worker, stage, aim)
            output, _ = process.communicate(timeout=PATIENCE_S)
            if hit and (aim == SERVER or recorded(place).get(stage) == lock):
                silent = process.returncode == 0 and aim != SERVER
                return place, f"SILENT: the flow ended well: {output[-900:]}" if silent else ""
        raise RuntimeError(f"{TRIES} kills came too late for {stage}: {aim}")


def without_server() -> dict[str, str]:
    """The environment of a flow that starts a server of its own."""
    named = ("PREFECT_API_URL", "PREFECT_HOME", server.AUTH)
    return {name: value for name, value in environment().items() if name not in named}


def shoot(place: Path, flow: int, worker: psutil.Process, stage: str, aim: str) -> bool:
    """SIGKILL what is aimed at; False where it has ended already."""
    if aim == STAGE:
        targets = [worker]
    elif aim == RECORD:
        targets = [one for one in running(place) if words_of(one)[1:3] == ["-m", "dvc"] and words_of(one)[-1] == stage]
    elif aim == FLOW:
        targets = [psutil.Process(flow)]
    elif aim == SERVER:
        targets = [one for one in running(place) if "flows.server" in words_of(one)]
    else:
        targets = list(running(place))
    killed = [kill(one) for one in targets]
    return any(killed)


def kill(process: psutil.Process) -> bool:
    """SIGKILL a process; False where it is gone."""
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return False
    return True


def running(place: Path) -> Iterator[psutil.Process]:
    """The processes that work in a folder."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.status() != psutil.STATUS_ZOMBIE and Path(process.cwd()).is_relative_to(place):
                yield process


def words_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def at_work(place: Path, stage: str) -> psutil.Process | None:
    """The process of a stage."""
    name, _, run = stage.partition("@")
    words = ["-m", f"stages.{name}", *([run] if run else [])]
    return next((one for one in running(place) if words_of(one)[1:] == words), None)


def wait_for(process: subprocess.Popen[str], place: Path, stage: str) -> psutil.Process:
    """The process of a stage, once it is there."""
    while process.poll() is None:
        if found := at_work(place, stage):
            return found
        time.sleep(0.02)
    raise RuntimeError(f"{stage} was never run: {process.communicate()[0]}")


def left_running(place: Path) -> list[str]:
    """Processes that are still there some time after the end."""
    until = time.monotonic() + 15
    while (left := [" ".join(words_of(one)) for one in running(place)]) and time.monotonic() < until:
        time.sleep(0.1)
    return left


def result(place: Path) -> tuple[dict[str, str], dict[str, Any]]:
    """Every output, and what dvc.lock says."""
    return products(place), recorded(place)


def how(output: str, stage: str) -> str:
    """What the run after the kill did with the stage that was hit."""
    if "fit begins at step" in output and "fit begins at step 0" not in output:
        return "resumed from a checkpoint"
    if f"Stage '{stage}' is cached - skipping run" in output:
        return "taken from DVC's run cache"
    return "run again" if f"Running stage '{stage}'" in output else "already recorded"
