"""A pipeline of a few seconds: a table, a model that is trained with checkpoints, and a report, under DVC and git."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

from benchmarks.faults.processes import Ended
from tests.workspace import ROOT, environment, git

PRODUCTS = ("data", "models", "metrics", "report")
RUN = "fit@a"
PARAMS = """numbers: {count: 50}
fit:
  runs:
    a: {data: numbers, rate: 0.9, steps: 60}
    b: {data: numbers, rate: 0.5, steps: 20}
"""
IGNORED = (
    "/data/\n/models/\n/metrics/\n/records/\n/checkpoints/\n/timings/\n/logs/\n/.prefect/\n/.sweeps/\n__pycache__/\n"
)


def made(folder: Path) -> Path:
    """The project, before its first run."""
    shutil.copytree(ROOT / "posttrain", folder / "posttrain", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "posttrain/scale.py").write_text("SCALE = 1.0\n")
    (folder / "stages").mkdir()
    shutil.copyfile(ROOT / "stages/__init__.py", folder / "stages/__init__.py")
    here = Path(__file__).parent / "small"
    for stage in ("numbers", "fit", "summary"):
        shutil.copyfile(here / f"{stage}.py", folder / f"stages/{stage}.py")
    shutil.copyfile(here / "pipeline.yaml", folder / "dvc.yaml")
    shutil.copyfile(ROOT / ".dvcignore", folder / ".dvcignore")
    (folder / "defaults.yaml").write_text("tables: data\n")
    (folder / "params.yaml").write_text(PARAMS)
    (folder / ".gitignore").write_text(IGNORED)
    git(folder, "init", "--quiet")
    for name, value in {"user.name": "tests", "user.email": "tests@localhost", "commit.gpgsign": "false"}.items():
        git(folder, "config", name, value)
    ran = command(folder, "dvc", "init", "--quiet")
    assert ran.status == 0, ran.output
    shutil.copyfile(ROOT / ".dvc/config", folder / ".dvc/config")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "the project")
    return folder


def started(folder: Path, *words: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """A command of Python's in the project, in a session of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", *words],
        cwd=folder,
        env=environment() if env is None else env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def ended(process: subprocess.Popen[str]) -> Ended:
    """How a command ended."""
    began = time.monotonic()
    output, _ = process.communicate(timeout=300)
    return Ended(process.returncode, output, time.monotonic() - began, None)


def command(folder: Path, *words: str, env: Mapping[str, str] | None = None) -> Ended:
    """Run a command of Python's in the project."""
    return ended(started(folder, *words, env=env))


def repro(folder: Path, *words: str) -> Ended:
    return command(folder, "dvc", "repro", *words)


def stage_runs(process: subprocess.Popen[str]) -> bool:
    """Whether DVC has a stage at work."""
    try:
        below = psutil.Process(process.pid).children(recursive=True)
        return any("stages." in " ".join(child.cmdline()) for child in below)
    except psutil.Error:
        return False


def products(folder: Path) -> dict[str, str]:
    """Every file that the stages wrote, but their records, and its digest."""
    files = [file for name in PRODUCTS for file in sorted((folder / name).rglob("*")) if file.is_file()]
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def errors(output: str) -> list[str]:
    """The lines in which a stage or a command of ours says what is wrong."""
    return [line for line in output.splitlines() if line.startswith("error: ")]
