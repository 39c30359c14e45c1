"""Runs a module of the benchmarks in a process with limited memory: how it ends, its seconds and its memory."""

from __future__ import annotations

import json
import math
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import ROOT
from posttrain.isolation.library import library_environment


def in_limited_process(module: str, *words: str, memory: int | None) -> dict[str, Any]:
    """Run a module that prints what `measured` returns; `memory`: bytes of address space, None: without a limit."""

    def limit() -> None:
        if memory is not None:
            resource.setrlimit(resource.RLIMIT_AS, (memory, memory))

    done = subprocess.run(
        [sys.executable, "-m", module, *words], cwd=ROOT, env=library_environment(), capture_output=True, text=True,
        check=False, timeout=300, preexec_fn=limit,
    )  # fmt: skip
    if done.returncode:
        return {"outcome": f"ENDED with {done.returncode}: {done.stderr[-300:]}", "seconds": 0.0, "mb": 0.0}
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def measured(work: Callable[[], str]) -> str:
    """Return the outcome of some work with its seconds and the largest memory of this process, as JSON."""
    before = time.monotonic()
    outcome = work()
    used = _largest_memory()
    return json.dumps({"outcome": outcome, "seconds": time.monotonic() - before, "mb": used})


def _largest_memory() -> float:
    """Return the most megabytes that this process had; getrusage would count its parent's before the start."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="utf-8"))
    return int(found[1]) / 1e3 if found else math.nan
