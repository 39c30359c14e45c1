"""Time and memory to read, check, deduplicate, split and tokenize a million rows, compared with `datasets`.

python -m benchmarks.data                        measure, then write docs/reports/performance.md
python -m benchmarks.data --rows 100000 --show   fewer rows, on the terminal alone
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks import RESULTS, ROOT
from benchmarks.data.sides import EXAM_FILE, HELD_OUT, ROWS_FILE, write_inputs
from benchmarks.machine import machine, versions
from docs.make.performance import write_page
from docs.make.performance_data import data_lines
from tests.workspace import environment

PARAMS: Final = {
    "data": {
        "files": {
            "rows": {"path": "my", "chat": {"path": ROWS_FILE.name, "heldout_share": HELD_OUT, "test_share": 0.0}},
            "exam": {"path": "my", "prompts": {"path": EXAM_FILE.name, "heldout_share": 0.0}},
        },
        "filters": {
            "near": {"data": "rows/chat", "against": "none", "reward_model": "none", "near_duplicates": 0.8},
            "clean": {"data": "rows/chat", "against": "exam/prompts", "reward_model": "none"},
        },
    }
}
PEER: Final = [sys.executable, "-m", "benchmarks.data.sides", "datasets"]
STEPS: Final = {
    "tables": [sys.executable, "-m", "stages.data_files", "rows"],
    "tokens": [sys.executable, "-m", "benchmarks.data.sides", "tokens"],
    "tokens again": [sys.executable, "-m", "benchmarks.data.sides", "tokens"],
    "near-duplicates": [sys.executable, "-m", "stages.data_filters", "near"],
    "13-grams": [sys.executable, "-m", "stages.data_filters", "clean"],
    "datasets": PEER,
}
_SAMPLE_S: Final = 0.25


def main(arguments: list[str]) -> int:
    """Measure every step in a fresh folder."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.data", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--steps", nargs="*", choices=STEPS, default=list(STEPS))
    parser.add_argument("--show", action="store_true", help="only on the terminal")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        write_inputs(options.rows)
        Path(".dvc/tmp").mkdir(parents=True)
        Path("params.yaml").write_text(json.dumps(PARAMS), encoding="utf-8")
        if "13-grams" in options.steps:
            measured([sys.executable, "-m", "stages.data_files", "exam"])
        found: dict[str, Any] = {"rows": options.rows, "steps": {}}
        for name in options.steps:
            found["steps"][name] = measured(STEPS[name])
            print(f"{name}: {json.dumps(found['steps'][name])}", flush=True)
        os.chdir(ROOT)
    found |= {"machine": machine(), "versions": versions("polars", "pyarrow", "tokenizers", "datasets")}
    if options.show:
        print("\n".join(data_lines(found)))
        return 0
    (RESULTS / "data.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    write_page()
    return 0


def measured(command: list[str]) -> dict[str, Any]:
    """Seconds and the largest memory of a command with its children, and its last line."""
    before, start, peak = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter(), 0
    known = {**environment(), "PYTHONPATH": str(ROOT)}
    with Path("output").open("w", encoding="utf-8") as output:
        child = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=known)
        while child.poll() is None:
            peak = max(peak, _memory(child.pid))
            time.sleep(_SAMPLE_S)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    said = Path("output").read_text(encoding="utf-8")
    if child.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{said}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    found = {"wall_s": round(wall, 1), "cpu_s": round(cpu, 1), "peak_mb": round(peak / 1e6)}
    return {**found, "said": said.splitlines()[-1:]}


def _memory(pid: int) -> int:
    """Return the memory of a process and its children; what they share counts once, files that are mapped count too."""
    total = 0
    for process in _family(pid):
        try:
            total += process.memory_full_info().pss
        except psutil.NoSuchProcess:
            continue
    return total


def _family(pid: int) -> list[psutil.Process]:
    try:
        first = psutil.Process(pid)
        return [first, *first.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
