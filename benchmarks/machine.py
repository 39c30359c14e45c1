"""In words, what a figure was measured on; kept with the figure, since a page may be written elsewhere."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def machine() -> str:
    """Processor, cores, memory."""
    return f"{_processor()}, {os.cpu_count()} cores shared with other work, {_memory()} GiB"


def versions(*packages: str) -> str:
    """Python and these packages."""
    return ", ".join([f"Python {platform.python_version()}", *(f"{name} {_version(name)}" for name in packages)])


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
