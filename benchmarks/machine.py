"""The machine that a figure is measured on, in words and as processes on one core."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def machine() -> str:
    """Processor, cores, memory, and how busy it is: the measured process itself is a load of 1."""
    load = f"load {os.getloadavg()[2]:.1f} (mean of 15 minutes)"
    return f"{_processor()}, {os.cpu_count()} cores, {_memory()} GiB, {load}"


def versions(*packages: str) -> str:
    """Python and these packages."""
    return ", ".join([f"Python {platform.python_version()}", *(f"{name} {_version(name)}" for name in packages)])


def run_pinned(
    command: Sequence[str], folder: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Return a process on one core, where the system can pin it."""
    core = max(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    pinned = ["taskset", "-c", str(core)] if core is not None and shutil.which("taskset") else []
    return subprocess.run([*pinned, *command], cwd=folder, env=environment, capture_output=True, text=True, check=False)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"


def _processor() -> str:
    file = Path("/proc/cpuinfo")
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())


def _memory() -> int:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
