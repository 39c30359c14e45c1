"""The origin of a stage's results (versions, device, seed, inputs): one file per stage; no stage depends on it.

The record, and so dvc.lock, is the same in every clone on one machine. It has no times, paths or host names.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from posttrain.files import write_json

FOLDER: Final = Path("records")
PYTHON: Final = f"{sys.version_info.major}.{sys.version_info.minor}"
"""Without the patch version, because all give the same bytes and so do not require running a stage again."""
PACKAGES: Final = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "polars", "pyarrow", "pandera")

_NOTED: dict[str, str | int] = {}


LICENCE: Final = "licence of "
"""The prefix of facts about the licence of a Hub data set."""


def note(**facts: str | int) -> None:
    """Add facts to this process's record, e.g. its device, threads and seed."""
    _NOTED.update(facts)


def noted(fact: str) -> str | int | None:
    """Return a fact that was added."""
    return _NOTED.get(fact)


def record_path(stage: str) -> Path:
    """Return the record file of a stage: `online@grpo` -> records/online/grpo.json."""
    return FOLDER / f"{stage.replace('@', '/')}.json"


def write_record(stage: str, used: Mapping[str, Any]) -> None:
    """Write the stage's record with its inputs."""
    record = {
        "stage": stage,
        **dict(sorted(_NOTED.items())),
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu_isa": cpu_isa(),
        "versions": versions(),
        **used,
    }
    write_json(record_path(stage), record)


def read_record(file: Path) -> dict[str, Any]:
    """Return a stage's record, or another JSON object; empty if it is missing, damaged or incomplete."""
    try:
        record = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def versions() -> dict[str, str]:
    """Return the versions of Python and of installed packages that affect a run's results."""
    known = {"python": PYTHON}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # the library alone needs fewer
            known[name] = importlib.metadata.version(name)
    return known


def cpu_isa() -> str:
    """Return the CPU instruction set of the libraries, set by `stages`. It decides the order of sums."""
    return os.environ.get("POSTTRAIN_CPU_ISA", "as found")
