"""Commands that run a module of the library in a separate process."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

LIBRARY = Path(__file__).resolve().parents[2]
"""The folder of the packages posttrain, stages and flows: a checkout, or the installation folder."""
PASSED: Final = (
    "PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
)  # fmt: skip
"""Variables that every command gets. It gets others only if its run lists them."""


def library_command(module: str, *words: str) -> list[str]:
    """Return the command that runs a library module, even in a folder with a package of the same name."""
    return [sys.executable, "-P", "-m", module, *words]


def library_environment() -> dict[str, str]:
    """Return the environment for `library_command`."""
    return {**os.environ, "PYTHONPATH": python_path()}


def python_path() -> str:
    """Return PYTHONPATH for a process that runs a library module from any folder."""
    return os.pathsep.join(filter(None, [str(LIBRARY), os.environ.get("PYTHONPATH")]))
