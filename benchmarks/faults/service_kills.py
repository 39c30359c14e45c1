"""Kills sweeps, served deployments and workers on the small pipeline, and what they started."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from ruamel.yaml import YAML

from benchmarks.faults.flow_kills import EDITS, Base, kill, left_running, result, running, wait_for, words_of
from benchmarks.faults.ledger import Row
from benchmarks.faults.project import command, started
from flows import server
from tests.pipeline.flows.project import call
from tests.workspace import git

STAGE = "fit@b"
SWEEP = ("flows.sweep", "rates", "-S", "fit.runs.b.rate=0.3,0.4", "--jobs", "2")
PATIENCE_S = 150.0
Found = Callable[[Path], list[psutil.Process]]


def named(*words: str) -> Found:
    """The processes of a folder whose command line has all these words."""
    return lambda place: [one for one in running(place) if set(words) <= set(words_of(one))]


AIMS: dict[str, Found] = {
    "a sweep: its own process": named("flows.sweep"),
    "a sweep: the DVC of its experiments": named("dvc", "exp"),
    "a sweep: all that it started": lambda place: list(running(place)),
    "a deployment: the process that serves it": named("flows.deploy"),
    "a deployment: its run": named("--multiprocessing-fork"),
    "a deployment: the process with all that it started": lambda place: list(running(place)),
    "a worker: its process": named("flows.workers"),
    "a worker: its run": named("--multiprocessing-fork"),
    "a worker: the process with all that it started": lambda place: list(running(place)),
    "the flow that hands stages to a worker": named("flows.pipeline"),
}
FAULTS = tuple(AIMS)


class Services(Base):
    """Kills of what runs for long; the first sweep is not killed and says what each experiment gives."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        place = folder / "sweep"
        shutil.copytree(self.template, place, symlinks=True)
        done = command(place, *SWEEP)
        assert done.status == 0, done.output
        self.finished, self.experiments = result(place), experiments(place)
        shutil.rmtree(place)

    def trial(self, seed: int, fault: str = "") -> Row:
        """One kill, then one more start of the same command."""
        rng = random.Random(f"service {seed}")
        fault = fault or FAULTS[seed % len(FAULTS)]
        place = self.folder / f"trial{seed}"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(self.template, place, symlinks=True)
        trial = {"a sweep": self._sweep, "a deployment": self._deployment}.get(fault.partition(":")[0], self._worker)
        outcome, wrong = trial(place, AIMS[fault], rng)
        shutil.rmtree(place)
        return {"fault": fault, "outcome": outcome, "wrong": wrong}

    def _sweep(self, place: Path, aim: Found, rng: random.Random) -> tuple[str, str]:
        process = started(place, *SWEEP)
        self._shoot(process, place, place, aim, rng)
        process.communicate(timeout=PATIENCE_S)
        kept = len(experiments(place))
        again = command(place, *SWEEP)
        outcome = f"{kept} of 2 experiments were kept"
        if again.status:
            return outcome, f"the next sweep failed: {again.output[-900:]}"
        if experiments(place) != self.experiments or result(place) != self.finished:
            return outcome, "SILENT: an experiment, or the workspace, differs"
        return outcome, f"left running: {left}" if (left := left_running(place)) else ""

    def _deployment(self, place: Path, aim: Found, rng: random.Random) -> tuple[str, str]:
        name = place.name
        words = ("flows.deploy", "serve", "--name", name)
        EDITS[STAGE](place)
        serving = serve(place, name, *words)
        asked_for(name)
        self._shoot(serving, place, place, aim, rng)
        if serving.poll() is not None:
            serving.communicate()
            serving = serve(place, name, *words)
        began = time.monotonic()
        state = final(asked_for(name))
        serving.terminate()
        output, _ = serving.communicate(timeout=PATIENCE_S)
        outcome = f"the next run ended within {60 * (1 + (time.monotonic() - began) // 60):.0f} s"
        return outcome, self.wrong(place, STAGE) if state == "COMPLETED" else f"the next run {state}: {output[-900:]}"

    def _worker(self, place: Path, aim: Found, rng: random.Random) -> tuple[str, str]:
        EDITS[STAGE](place)
        command(place, "dvc", "remote", "add", "-d", "shared", str(place / ".dvc/tmp/remote"))
        git(place, "commit", "--quiet", "--all", "--message", "a remote and another rate")
        host = place.with_name(f"{place.name}-host")
        shutil.rmtree(host, ignore_errors=True)
        git(place.parent, "clone", "--quiet", str(place), str(host))
        serving = serve(host, place.name, "flows.workers", "--name", place.name)
        flow = started(place, "flows.pipeline", "--workers")
        self._shoot(flow, host, host if aim is not AIMS[FAULTS[-1]] else place, aim, rng)
        try:
            flow.communicate(timeout=PATIENCE_S)
            ending = "the flow ended by itself"
        except subprocess.TimeoutExpired:
            flow.terminate()
            flow.communicate()
            ending = "the flow had to be ended"
        if serving.poll() is not None:
            serving.communicate()
            serving = serve(host, place.name, "flows.workers", "--name", place.name)
        again = command(place, "flows.pipeline", "--workers")
        serving.terminate()
        serving.communicate(timeout=PATIENCE_S)
        wrong = self.wrong(place, STAGE) if again.status == 0 else f"the next run failed: {again.output[-900:]}"
        wrong = wrong or (f"left running: {left}" if (left := left_running(host)) else "")
        shutil.rmtree(host)
        return ending, wrong

    def _shoot(
        self, process: subprocess.Popen[str], stage_in: Path, place: Path, aim: Found, rng: random.Random
    ) -> None:
        """SIGKILL what is aimed at, at a random moment of the stage's time."""
        wait_for(process, stage_in, STAGE)
        time.sleep(self.seconds[STAGE] * rng.random())
        targets = aim(place)
        assert targets, "nothing to kill"
        for one in targets:
            kill(one)
        psutil.wait_procs(targets, PATIENCE_S)


def experiments(place: Path) -> dict[str, Any]:
    """Every experiment's dvc.lock."""
    refs = git(place, "for-each-ref", "--format=%(refname)", "refs/exps").split()
    read = YAML(typ="safe", pure=True).load
    return {
        ref.rpartition("/")[2]: read(git(place, "show", f"{ref}:dvc.lock")) for ref in refs if "/exps/exec" not in ref
    }


def api(path: str, **body: Any) -> Any:
    return call(os.environ["PREFECT_API_URL"], os.environ[server.AUTH], path, body)


def deployment(name: str) -> dict[str, Any]:
    found = api("deployments/filter", deployments={"name": {"any_": [name]}})
    return dict(found[0]) if found else {}


def serve(place: Path, name: str, *words: str) -> subprocess.Popen[str]:
    """A process that serves a deployment, once it does."""
    since = deployment(name).get("last_polled", "")
    process = started(place, *words)
    until = time.monotonic() + PATIENCE_S
    while (now := deployment(name)).get("status") != "READY" or now.get("paused") or now["last_polled"] == since:
        if process.poll() is not None or time.monotonic() > until:
            raise RuntimeError(f"{name} is not served: {process.communicate()[0]}")
        time.sleep(0.3)
    return process


def asked_for(name: str) -> str:
    """The id of a new run of a deployment."""
    return str(api(f"deployments/{deployment(name)['id']}/create_flow_run", state={"type": "SCHEDULED"})["id"])


def final(run: str) -> str:
    """The state in which a run ends, or the last one in time."""
    until = time.monotonic() + 2 * PATIENCE_S
    while time.monotonic() < until:
        (found,) = api("flow_runs/filter", flow_runs={"id": {"any_": [run]}})
        if found["state_type"] in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED"):
            break
        time.sleep(0.5)
    return str(found["state_type"])
