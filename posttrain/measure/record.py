"""What made a stage's results: an output of its own per stage, which no stage depends on and the weights do not hold.

What is recorded is equal in every clone on one machine, so that dvc.lock is too: no time, no path, no name of a host.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from posttrain.workspace import CUSTOM, write_json

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


def code_digest() -> str:
    """A digest of the library's loaded code."""
    digest = hashlib.sha256()
    for part in _code():
        digest.update(part)
    return digest.hexdigest()[:16]


def _code() -> Iterator[bytes]:
    loaded = {_name(name, module): getattr(module, "__file__", None) for name, module in list(sys.modules.items())}
    for name in sorted(loaded):
        if (file := loaded[name]) and _counts(name, Path(file)):
            yield name.encode()
            yield Path(file).read_bytes()


def _name(name: str, module: ModuleType) -> str:
    """A module's name: the stage's own file is loaded as `__main__`."""
    spec = getattr(module, "__spec__", None)
    return spec.name if name == "__main__" and spec else name


def _counts(module: str, file: Path) -> bool:
    """Whether a module's code can change a run: the library but for what measures it, and the user's own files."""
    if file.is_relative_to(CUSTOM.absolute()):
        return True
    return module.partition(".")[0] in ("posttrain", "stages") and not module.startswith("posttrain.measure")
