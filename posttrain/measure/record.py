"""What made a stage's results (versions, device, seed, inputs): one output per stage, on which no stage depends.

The record is the same in every clone on one machine, and so is dvc.lock: no time, no path, no host name.
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
"""Without the patch version: the same bytes come out under each, so that it is no reason to run a stage again."""
PACKAGES: Final = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "polars", "pyarrow", "pandera")

_NOTED: dict[str, str | int] = {}


LICENCE: Final = "licence of "
"""How the facts begin that say the licence of a data set of the Hub."""


def note(**facts: str | int) -> None:
    """Add facts to the record of this process, e.g. its device, threads and seed."""
    _NOTED.update(facts)


def noted(fact: str) -> str | int | None:
    """Return a fact that was added."""
    return _NOTED.get(fact)


def record_path(stage: str) -> Path:
    """Return the file of a stage's record: `online@grpo` -> records/online/grpo.json."""
    return FOLDER / f"{stage.replace('@', '/')}.json"


def write_record(stage: str, used: Mapping[str, Any]) -> None:
    """Write the stage's record, with the inputs that it used."""
    found = {
        "stage": stage,
        **dict(sorted(_NOTED.items())),
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu_isa": cpu_isa(),
        "versions": versions(),
        **used,
    }
    write_json(record_path(stage), found)


def read_record(file: Path) -> dict[str, Any]:
    """Return a stage's record, or another JSON object; an empty one where it is missing, damaged or not whole yet."""
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages that decide what a run computes."""
    found = {"python": PYTHON}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # the library alone needs fewer
            found[name] = importlib.metadata.version(name)
    return found


def cpu_isa() -> str:
    """Return the CPU instruction set that the libraries may use, set by `stages`; it decides the order of sums."""
    return os.environ.get("POSTTRAIN_CPU_ISA", "as found")
