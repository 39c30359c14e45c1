"""Run the pipeline from nothing in two clean copies and compare every digest: python -m tests.reproduce [PARAMS_FILE]

The copies lie in folders of different names and depth; the second runs under another hash seed, time zone and locale.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from tests.workspace import dvc, make_workspace

SURROUNDINGS = (
    {"PYTHONHASHSEED": "1", "TZ": "UTC", "LC_ALL": "C.UTF-8"},
    {"PYTHONHASHSEED": "2", "TZ": "Asia/Kathmandu", "LC_ALL": "C"},
)


def lock_of(workspace: Path) -> dict[str, Any]:
    """dvc.lock as data."""
    lock: dict[str, Any] = YAML(typ="safe", pure=True).load((workspace / "dvc.lock").read_text(encoding="utf-8"))
    return lock


def differences(one: Any, two: Any, where: str = "") -> list[str]:
    """Every path at which two nested values differ."""
    if isinstance(one, dict) and isinstance(two, dict):
        keys = sorted(one.keys() | two.keys())
        return [line for key in keys for line in differences(one.get(key), two.get(key), f"{where}/{key}")]
    if isinstance(one, list) and isinstance(two, list) and len(one) == len(two):
        pairs = enumerate(zip(one, two, strict=True))
        return [line for i, (a, b) in pairs for line in differences(a, b, f"{where}/{_label(a, i)}")]
    return [] if one == two else [f"{where}: {one!r} and {two!r}"]


def reproduce(folder: Path, params_file: Path | None) -> list[str]:
    """What differs between the two locks; the first copy's own lock is not trusted, every stage runs."""
    locks = []
    for place, surroundings in zip(("a", "deeper/and/longer/b"), SURROUNDINGS, strict=True):
        workspace = make_workspace(folder / place, params_file)
        os.environ.update(surroundings)
        done = dvc(workspace, "repro", "--force")
        if done.returncode:
            raise RuntimeError(f"dvc repro failed in {workspace}:\n{done.stdout}")
        locks.append(lock_of(workspace))
    first, second = locks
    return differences(first, second)


def _label(item: Any, index: int) -> str:
    return str(item["path"]) if isinstance(item, dict) and "path" in item else str(index)


def main(arguments: list[str]) -> int:
    """0 when the two locks are equal."""
    with tempfile.TemporaryDirectory() as folder:
        found = reproduce(Path(folder), Path(arguments[0]) if arguments else None)
        stages = len(lock_of(Path(folder) / "a")["stages"])
    print("\n".join(found) if found else f"{stages} stages, two clean copies, equal dvc.lock")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
