"""Half an hour of tests on a GPU: the GPU's own tests, a run that is killed and resumed, one turn of the benchmark.

python -m benchmarks.gpu_tests [--minutes 25]  writes benchmarks/results/gpu-tests.json, then reports/performance-gpu.md

What is in the file is not done again, so a stopped run continues. 25 minutes are an estimate.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks import RESULTS, ROOT
from benchmarks.speed.cases import GPU

FILE = RESULTS / "gpu-tests.json"
TESTS = ("tests/library/models/test_cuda.py", "tests/second_device", "tests/pipeline/train/test_transfers.py")
RECIPE = "recipes/smoke.yaml"
BEFORE = ("data_tasks two_step", "base_scratch tiny")
"""What SFT of the miniature needs."""
POLL_S = 0.05

Result = dict[str, Any]


class StepError(RuntimeError):
    """A step failed; the next ones run."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_tests", description=__doc__)
    parser.add_argument("--minutes", type=float, default=25.0, help="no step begins later, and none ends later")
    options = parser.parse_args(arguments)
    import torch

    if not torch.cuda.is_available():
        print("error: no CUDA device here. Run it where there is one", file=sys.stderr)
        return 1
    return run_steps(steps(), FILE, time.monotonic() + 60 * options.minutes)


def steps() -> dict[str, Callable[[float], Result]]:
    """Return what is done, in this order: each gets the seconds that are left."""
    bench = {f"bench {case}": lambda left, case=case: _bench(case, left) for case in GPU}
    return {"tests": _tests, "resume": _resume, **bench, "page": _page}


def run_steps(todo: Mapping[str, Callable[[float], Result]], file: Path, end: float) -> int:
    """Run what the file does not have, and write each result at once; 1 if something failed or is left."""
    done: dict[str, Result] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    for name, step in todo.items():
        left = end - time.monotonic()
        if left <= 0 or "failed" not in done.get(name, {"failed": ""}):
            continue
        start = time.monotonic()
        try:
            found = step(left)
        except (StepError, subprocess.TimeoutExpired) as error:
            found = {"failed": str(error)[-2000:]}
        done[name] = {**found, "seconds": round(time.monotonic() - start, 1)}
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(done, indent=1) + "\n", encoding="utf-8")
        print(f"{name}: {done[name]}", flush=True)
    return int(any("failed" in done.get(name, {"failed": ""}) for name in todo))


def _python(arguments: list[str], left: float, folder: Path = ROOT) -> str:
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=left, check=False)
    if done.returncode:
        raise StepError(done.stdout[-1000:] + done.stderr[-1000:])
    return done.stdout


def _tests(left: float) -> Result:
    """Return what only a GPU can show, by its tests."""
    return {"tests": _python(["pytest", "-q", "-n", "8", *TESTS], left).strip().splitlines()[-1]}


def _bench(case: str, left: float) -> Result:
    """Return one turn of every side of a case; deterministic kernels on and off are sides of SFT."""
    code = f"from benchmarks.speed.gpu import alternate, sides_of; alternate({case!r}, sides_of({case!r}), 1)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=left, check=False
    )
    if done.returncode:
        raise StepError(done.stdout[-1000:] + done.stderr[-1000:])
    return {"sides": done.stdout.strip().splitlines()}


def _page(left: float) -> Result:
    """Return the page of what was measured."""
    _python(["benchmarks.speed.gpu", "-n", "1"], left)
    return {}


def _resume(left: float) -> Result:
    """SFT of the miniature on the GPU, twice: once whole, once killed after a checkpoint; the weights are the same."""
    end, work = time.monotonic() + left, RESULTS / "gpu-workspace"
    shutil.rmtree(work, ignore_errors=True)
    _python(["tests.workspace", str(work), RECIPE], left)
    for stage in BEFORE:
        name, run = stage.split()
        _python([f"stages.{name}", run], end - time.monotonic(), work)
    estimate = _python(["posttrain", "plan", "sft"], end - time.monotonic(), work)
    model = work / "models/sft/main"
    _python(["stages.sft", "main"], end - time.monotonic(), work)
    whole = (model / "manifest.json").read_bytes()
    peak = json.loads((work / "timings/sft/main.json").read_text(encoding="utf-8")).get("device_peak_mb")
    for folder in ("models/sft", "checkpoints"):
        shutil.rmtree(work / folder, ignore_errors=True)
    _kill_after_a_checkpoint(work, end)
    _python(["stages.sft", "main"], end - time.monotonic(), work)
    if (model / "manifest.json").read_bytes() != whole:
        raise StepError("the resumed run has other weights")
    return {"weights": "the same", "device_peak_mb": peak, "plan": estimate.strip().splitlines()}


def _kill_after_a_checkpoint(work: Path, end: float) -> None:
    stage = subprocess.Popen([sys.executable, "-m", "stages.sft", "main"], cwd=work)
    try:
        while not [*work.glob("checkpoints/**/step-*")]:
            if stage.poll() is not None:
                raise StepError("SFT ended before its first checkpoint")
            if time.monotonic() > end:
                raise StepError("no checkpoint in time")
            time.sleep(POLL_S)
    finally:
        if stage.poll() is None:
            os.kill(stage.pid, signal.SIGKILL)
        stage.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
