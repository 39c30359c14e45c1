"""A tiny real DVC project with a fork and a join, on which flows are run as processes."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil

from tests.workspace import ROOT

PYTHON = sys.executable.replace(" ", "\\ ")
"""As a command in YAML has it: quotes would be YAML's own."""

# Sleeps as long as the file `seconds` says, which DVC does not know of; notes when it began and ended.
STEP = """
import json, os, pathlib, signal, subprocess, sys, time
name, *inputs = sys.argv[1:]
seen = pathlib.Path("seen"); seen.mkdir(exist_ok=True)
begin = time.time()
(seen / f"{name}.begun").write_text(os.environ.get("CUDA_VISIBLE_DEVICES", ""))
troubles = json.loads(pathlib.Path("trouble.json").read_text())
trouble = troubles.get(name, {})
print(f"{name} at work")
if trouble.get("deaf"):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
if trouble.get("child"):
    subprocess.Popen(["sleep", "300"])
if trouble.get("fails", 0) > 0:
    trouble["fails"] -= 1
    pathlib.Path("trouble.json").write_text(json.dumps(troubles))
    sys.exit(f"{name}: cannot add apples to pears")
time.sleep(trouble.get("seconds", 0))
text = "".join(pathlib.Path(path).read_text() for path in inputs)
pathlib.Path(f"{name}.txt").write_text(f"{text}{name}\\n")
(seen / f"{name}.json").write_text(json.dumps([begin, time.time()]))
"""

DVC_YAML = """
stages:
  prepare:
    cmd: {step} prepare
    outs: [prepare.txt]
  branch:
    foreach: ${{runs}}
    do:
      cmd: {step} ${{key}} prepare.txt
      deps: [prepare.txt]
      params: ['runs.${{key}}']
      outs: ['${{key}}.txt']
      meta:
        owner: me
        gpus: ${{item.gpus}}
        retries: ${{item.retries}}
        retry_delay: 0.5
        timeout: ${{item.timeout}}
  join:
    cmd: {step} join left.txt right.txt
    deps: [left.txt, right.txt]
    outs: [join.txt]
"""

SUB_YAML = """
stages:
  extra:
    wdir: ..
    cmd: {step} extra join.txt
    deps: [join.txt]
    outs: [extra.txt]
"""


T = TypeVar("T")
FINAL = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}


@dataclass(frozen=True)
class Ended:
    """A finished flow: exit code, its table, what it printed, and what Prefect recorded."""

    code: int
    states: dict[str, str]
    out: str
    err: str
    seconds: float


@dataclass(frozen=True)
class Project:
    """A DVC project with a fork and a join, on which flows are run as processes."""

    root: Path
    env: dict[str, str]

    def start(self, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "flows.pipeline", *words]
        return subprocess.Popen(
            command, cwd=self.root, env=self.env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def finish(self, process: subprocess.Popen[str]) -> Ended:
        begin = time.monotonic()
        out, err = process.communicate(timeout=300)  # ends a test that hangs; a busy machine is no failure
        rows = re.findall(r"^(\S+) +([A-Z]\w+) +[\d.]+$", out, flags=re.MULTILINE)
        return Ended(process.returncode, dict(rows), out, err, time.monotonic() - begin)

    def run(self, *words: str) -> Ended:
        return self.finish(self.start(*words))

    def dvc(self, *words: str) -> str:
        command = [sys.executable, "-m", "dvc", *words]
        return subprocess.run(command, cwd=self.root, env=self.env, check=True, capture_output=True, text=True).stdout

    def runs(self, left: dict[str, int], right: dict[str, int]) -> None:
        """Write params.yaml, which is YAML and JSON at once."""
        usual = {"gpus": 0, "retries": 0, "timeout": 1000}
        runs = {"left": {**usual, **left}, "right": {**usual, **right}}
        (self.root / "params.yaml").write_text(json.dumps({"runs": runs}))

    def trouble(self, **stages: dict[str, Any]) -> None:
        (self.root / "trouble.json").write_text(json.dumps(stages))

    def wait_begun(self, *stages: str) -> None:
        end = time.monotonic() + 40
        while not all((self.root / "seen" / f"{stage}.begun").exists() for stage in stages):
            assert time.monotonic() < end, "the stages have not begun"
            time.sleep(0.05)

    def span(self, stage: str) -> tuple[float, float]:
        begin, end = json.loads((self.root / "seen" / f"{stage}.json").read_text())
        return begin, end

    def processes(self) -> list[str]:
        """All processes that work in this project."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.status() != psutil.STATUS_ZOMBIE and Path(process.cwd()).is_relative_to(self.root):
                    found.append(" ".join(process.cmdline()))
            except psutil.Error:
                continue
        return found

    def left_running(self, seconds: float = 10.0) -> list[str]:
        """The same after some time: Python's tracker of shared resources ends shortly after its process."""
        end = time.monotonic() + seconds
        while (found := self.processes()) and time.monotonic() < end:
            time.sleep(0.1)
        return found

    def task_runs(self, ended: Ended) -> dict[str, dict[str, Any]]:
        """What Prefect's server has recorded of a flow, by task: it writes the states down after they are reported."""

        def recorded() -> dict[str, dict[str, Any]]:
            runs = self.api("task_runs/filter", flow_runs={"id": {"any_": [self.run_id(ended.err)]}})
            return {run["name"]: run for run in runs if run["state_type"] in FINAL}

        return written(recorded, lambda runs: ended.states.keys() <= runs.keys())

    def errors(self, task: dict[str, Any], last: str) -> list[str]:
        """The error lines of a task up to one with this text; the server may have them later than the task itself."""

        def logged() -> list[str]:
            found = self.api("logs/filter", logs={"task_run_id": {"any_": [task["id"]]}})
            return [one["message"] for one in found if one["level"] >= 40]

        return written(logged, lambda lines: any(last in line for line in lines))

    def run_id(self, err: str) -> str:
        found = re.search(r"flow-run/([0-9a-f-]{36})", err)
        assert found is not None, err
        return found.group(1)

    def api(self, path: str, **body: Any) -> Any:
        return call(self.env["PREFECT_API_URL"], self.env["PREFECT_API_AUTH_STRING"], path, body)


def written(read: Callable[[], T], whole: Callable[[T], bool]) -> T:
    """What the server has written, read until it is whole."""
    end = time.monotonic() + 60  # ends a test that would wait for ever
    while not whole(found := read()):
        assert time.monotonic() < end, found
        time.sleep(0.1)
    return found


def call(url: str, login: str, path: str, body: dict[str, Any]) -> Any:
    """Prefect's answer to a POST with the login and a CSRF token."""
    headers = {"Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"}
    asked = urllib.request.Request(f"{url}/csrf-token?client=tests", headers=headers)
    with urllib.request.urlopen(asked, timeout=30) as reply:
        token = json.load(reply)["token"]
    headers |= {
        "Content-Type": "application/json",
        "Prefect-Csrf-Client": "tests",
        "Prefect-Csrf-Token": token,
    }
    request = urllib.request.Request(f"{url}/{path}", json.dumps(body).encode(), headers, method="POST")
    for wait in (0.5, 1.0, 2.0, 0.0):  # SQLite is busy for a moment: Prefect's own client asks again too
        try:
            with urllib.request.urlopen(request, timeout=30) as reply:
                return json.load(reply)
        except urllib.error.HTTPError as error:
            if error.code != 503 or not wait:
                raise
            time.sleep(wait)
    raise AssertionError("the last try returns or raises")


def clean_env() -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT", "DVC", "CUDA"))}
    return {**env, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
