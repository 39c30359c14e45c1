"""Pipelines for `dvc repro` with nothing to do: ours, and others of as many stages that do nothing at all."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from tests.workspace import environment, make_workspace

SMOKE = "recipes/smoke.yaml"


def finished(folder: Path) -> Path:
    """Our pipeline in small, everything done."""
    if not (folder / "dvc.lock").is_file():
        make_workspace(folder, Path(SMOKE))
        repro(folder)
    return folder


def bare(ours: Path, folder: Path) -> Path:
    """As many stages as ours, each with one tiny dependency, without which DVC runs a stage every time."""
    stages = {f"stage{n}": {"cmd": "true", "deps": [f"dep{n}"]} for n in range(len(locked(ours)))}
    return _made(ours, folder, stages, [dep for stage in stages.values() for dep in stage["deps"]])


def hollow(ours: Path, folder: Path) -> Path:
    """As many stages, dependencies, outputs and parameters as ours, every file of them tiny and none a folder."""
    known: dict[str, str] = {}
    stages = {}
    for number, one in enumerate(locked(ours).values()):
        deps, outs = (
            [known.setdefault(entry["path"], f"file{len(known)}") for entry in one.get(kind, [])]
            for kind in ("deps", "outs")
        )
        params = [name for names in one.get("params", {}).values() for name in names]
        stages[f"stage{number}"] = {"cmd": f"touch {' '.join(outs)}", "deps": deps, "outs": outs, "params": params}
    made = {out for stage in stages.values() for out in stage["outs"]}
    folder.mkdir(parents=True)
    shutil.copyfile(ours / "params.yaml", folder / "params.yaml")
    return _made(ours, folder, stages, [name for name in known.values() if name not in made])


def locked(ours: Path) -> dict[str, Any]:
    """Return the stages of dvc.lock."""
    text = (ours / "dvc.lock").read_text(encoding="utf-8")
    stages: dict[str, Any] = YAML(typ="safe", pure=True).load(text)["stages"]
    return stages


def repro(folder: Path) -> None:
    """`dvc repro`, which must succeed."""
    command = [sys.executable, "-m", "dvc", "repro", "--quiet"]
    subprocess.run(command, cwd=folder, env=environment(), check=True)


def _made(ours: Path, folder: Path, stages: dict[str, Any], files: list[str]) -> Path:
    """Return a pipeline under our DVC's settings that has run once."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in files:
        (folder / name).write_text(f"{name}\n", encoding="utf-8")
    (folder / "dvc.yaml").write_text(json.dumps({"stages": stages}), encoding="utf-8")  # JSON is YAML
    for command in (["git", "init", "--quiet"], [sys.executable, "-m", "dvc", "init", "--quiet"]):
        subprocess.run(command, cwd=folder, env=environment(), check=True)
    shutil.copyfile(ours / ".dvc" / "config", folder / ".dvc" / "config")
    repro(folder)
    return folder
