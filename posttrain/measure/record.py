"""What made a stage's results: an output of its own per stage, which no stage depends on and the weights do not hold.

What is recorded is equal in every clone on one machine, so that dvc.lock is too: no time, no path, no name of a host.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from posttrain.workspace import write_json

FOLDER: Final = Path("records")
PACKAGES: Final = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "polars", "pyarrow", "pandera")

_NOTED: dict[str, str | int] = {}


def note(**facts: str | int) -> None:
    """Remember what this process decided: its device, its threads, its seed."""
    _NOTED.update(facts)


def record_path(stage: str) -> Path:
    """Where a stage's record lies: `online@grpo` -> records/online/grpo.json."""
    return FOLDER / f"{stage.replace('@', '/')}.json"


def write_record(stage: str, used: Mapping[str, Any]) -> None:
    """Write down what made the results that the stage has written, the inputs that it has used among it."""
    found = {
        "stage": stage,
        **dict(sorted(_NOTED.items())),
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu_isa": cpu_isa(),
        "versions": versions(),
        **used,
    }
    write_json(record_path(stage), found)


def versions() -> dict[str, str]:
    """Python's and those of the packages that decide what a stage computes."""
    return {"python": platform.python_version()} | {name: importlib.metadata.version(name) for name in PACKAGES}


def cpu_isa() -> str:
    """Which instructions of the CPU the libraries may use, as `stages` has set it; they decide the order of sums."""
    return os.environ.get("POSTTRAIN_CPU_ISA", "as found")
