"""Find the runs in dvc.lock that have read a row. These runs and runs that use their models must run again."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from posttrain.pipeline.params.stage_table import STAGES

_TABLES = {stage.name for stage in STAGES if stage.makes == "tables"}


def model_made(stage: str) -> str | None:
    """Return the model that a stage makes: `online@grpo` -> online/grpo; None if it makes something else."""
    group, _, name = stage.partition("@")
    return next((entry.output(name) for entry in STAGES if entry.name == group and entry.makes == "model"), None)


def affected(lock: Mapping[str, Any], digests: Collection[str], files: Iterable[str]) -> dict[str, str]:
    """Return stage -> the input with the row: a file that contains it, or the output of another such stage.

    A table is judged by its content. It does not matter that another table of the same run contains the row.
    """
    held = list(files)
    reached = {
        name: dep["path"]
        for name, entry in lock.items()
        for dep in entry.get("deps", ())
        if dep.get("md5") in digests or any(Path(file).is_relative_to(dep["path"]) for file in held)
    }
    passed = {name for name in reached if name.partition("@")[0] not in _TABLES}
    while True:
        outs = {out["path"] for name in passed for out in lock[name].get("outs", ())}
        more = {
            name: dep["path"]
            for name, entry in lock.items()
            if name not in passed
            for dep in entry.get("deps", ())
            if any(Path(out).is_relative_to(dep["path"]) or Path(dep["path"]).is_relative_to(out) for out in outs)
        }
        if not more:
            return {name: reached[name] for name in lock if name in reached}
        reached = more | reached
        passed |= more.keys()
