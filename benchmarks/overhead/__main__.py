"""The pipeline's own cost: a stage before its first step, idle `dvc repro`, an idle flow, and checks of tables.

python -m benchmarks.overhead            measure, then write docs/reports/performance.md
python -m benchmarks.overhead -n 1 --show  one turn, on the terminal alone
"""

from __future__ import annotations

import argparse
import contextlib
import json
import pstats
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import RESULTS
from benchmarks.machine import machine, run_pinned, versions
from benchmarks.overhead.pipelines import bare, finished, hollow, locked
from docs.make.performance import write_page
from docs.make.performance_overhead import overhead_lines
from tests.workspace import environment

STAGES = ("stage sft main", "stage online grpo")
SERVER_STARTS = 3
"""The first makes the database."""
TABLE_TURNS = 3
TABLES = tuple(f"tables {kind}" for kind in ("chat", "pairs", "prompts", "rollouts"))
WORK = {
    "all of it": ("dvc/__main__.py", "<module>"),
    "reading YAML": ("dvc/utils/serialize/_yaml.py", "parse_yaml"),
    "checking it against schemas": ("voluptuous/schema_builder.py", "__call__"),
    "making stages of it": ("dvc/stage/loader.py", "__getitem__"),
    "looking at dependencies and outputs": ("dvc/output.py", "get_hash"),
    "locks": ("dvc/rwlock.py", "rwlock"),
}
"""What DVC does, and the function in which it does so."""
Found = dict[str, list[dict[str, float]]]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overhead", description=__doc__)
    parser.add_argument(
        "-n", "--rounds", type=int, default=5, help="alternations; tables are checked in the first three"
    )
    parser.add_argument("--show", action="store_true", help="only on the terminal")
    parser.add_argument("--workspace", type=Path, help="a finished smoke pipeline, which is made otherwise")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        ours = finished(options.workspace or Path(folder) / "ours")
        found = measured(ours, Path(folder), options.rounds)
    if options.show:
        print("\n".join(overhead_lines(found)))
        return 0
    (RESULTS / "overhead.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    write_page()
    return 0


def measured(ours: Path, folder: Path, rounds: int) -> dict[str, Any]:
    """Return every side in turn, then again."""
    pipelines = {"ours": ours, "bare": bare(ours, folder / "bare"), "hollow": hollow(ours, folder / "hollow")}
    at_work = shutil.copytree(
        ours, folder / "at work", symlinks=True
    )  # `ours` has to stay as it is, with nothing to do
    found: Found = {}
    for _ in range(SERVER_STARTS):
        with served(ours) as seconds:
            found.setdefault("server", []).append({"wall": seconds})
    for turn in range(rounds):
        with served(ours):
            found.setdefault("flow", []).append(_child(["-m", "flows.pipeline"], ours, "View at"))
        for name, place in pipelines.items():
            found.setdefault(f"dvc {name}", []).append(_child(["-m", "dvc", "repro"], place, "up to date"))
        for side in ("imports", "collected", *STAGES, *(TABLES if turn < TABLE_TURNS else ())):
            found.setdefault(side, []).append(_side(side, at_work))
            print(f"{side}: {found[side][-1]}", flush=True)
    stages = locked(ours)
    count = {kind: sum(len(stage.get(kind, [])) for stage in stages.values()) for kind in ("deps", "outs")}
    profiles = {name: profile(pipelines[name], folder / name / "profile") for name in ("ours", "bare")}
    used = f"{machine()}, no GPU; {versions('dvc', 'pandera', 'polars', 'torch', 'transformers')}"
    return {"machine": used, "stages": len(stages), **count, "profiles": profiles, "sides": found}


@contextlib.contextmanager
def served(place: Path) -> Iterator[float]:
    """Prefect's server for the flows of a workspace, and the seconds until it answered."""
    began, command = time.perf_counter(), [sys.executable, "-m", "flows.server", "--port", "0"]
    with subprocess.Popen(command, cwd=place, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        try:
            said = process.stdout.readline() if process.stdout else ""
            if "Prefect is at" not in said:
                raise RuntimeError(f"Prefect's server did not start: {said}")
            yield time.perf_counter() - began
        finally:
            process.terminate()


def profile(place: Path, file: Path) -> dict[str, float]:
    """Return the seconds of an idle `dvc repro` by what DVC does, under Python's profiler."""
    file.parent.mkdir(exist_ok=True)
    _child(["-m", "cProfile", "-o", str(file), "-m", "dvc", "repro"], place, "up to date")
    spent = dict.fromkeys(WORK, 0.0)
    stats: dict[Any, Any] = pstats.Stats(str(file)).stats  # type: ignore[attr-defined]
    for (source, _, function), (_, _, _, total, _) in stats.items():
        for title, (end, name) in WORK.items():
            if source.endswith(end) and function == name:
                spent[title] = max(spent[title], total)
    return spent


def _side(side: str, workspace: Path) -> dict[str, float]:
    """Return one side's own report."""
    done = run_pinned(
        [sys.executable, "-m", "benchmarks.overhead.side", side, str(time.time())], workspace, environment()
    )
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        raise RuntimeError(f"{side} failed:\n{done.stdout[-500:]}\n{done.stderr[-2000:]}")
    shutil.rmtree(workspace / "checkpoints", ignore_errors=True)
    report: dict[str, float] = json.loads(lines[-1])
    return report


def _child(command: list[str], place: Path, said: str) -> dict[str, float]:
    """CPU and wall seconds of a process from its start to its end, which must say that there was nothing to do."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = run_pinned([sys.executable, *command], place, environment())
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - began
    if done.returncode or said not in done.stdout + done.stderr:
        raise RuntimeError(f"{' '.join(command)} in {place} was no idle run:\n{done.stdout[-2000:]}{done.stderr}")
    return {"cpu": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, "wall": wall}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
