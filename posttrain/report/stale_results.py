"""Which results are out of date for the current params, data and code, and why."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from posttrain.errors import PipelineError
from posttrain.params import PARAMS_FILE
from posttrain.workspace import failure_path, library_command, library_environment

NOT_RUN = "not run yet"
LONGEST = 300


def not_current(labels: Mapping[str, str]) -> dict[str, str]:
    """Label -> why its results are not current: a stage failed, has not run, or its inputs have changed."""
    stages = {stage["name"]: stage for stage in _stages()}
    found = {label: _reason(f"evaluate@{label}", stages) for label in labels}
    return {label: reason for label, reason in found.items() if reason}


def _stages() -> list[dict[str, Any]]:
    """The stages of dvc.yaml and why they are stale, read by DVC in a separate process."""
    command, env = library_command("flows.graph"), library_environment()
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    try:
        answer = json.loads(done.stdout)
    except ValueError as error:
        what = f"reading the graph ended with exit code {done.returncode} ({done.stderr.strip()[-300:]})"
        raise PipelineError(what=what, where="dvc.yaml", fix="See `dvc status`") from error
    if "error" in answer:
        raise PipelineError(**answer["error"])
    stages: list[dict[str, Any]] = answer["stages"]
    return stages


def _reason(name: str, stages: Mapping[str, Any]) -> str:
    """The cause that is furthest upstream; empty if everything is current."""
    stale = [one for one in _upstream(name, stages) if stages[one]["reasons"]]
    for one in stale:
        file = failure_path(one)
        if file.is_file() and file.stat().st_mtime >= Path(PARAMS_FILE).stat().st_mtime:  # else params.yaml was edited
            first = file.read_text(encoding="utf-8").strip().partition("\n")[0]
            return f"failed: {one}: {first[:LONGEST]}"
    if not stale:
        return ""
    missing = Path("results") / name.partition("@")[2] / "metrics.json"
    if not missing.is_file():
        return NOT_RUN
    return f"out of date: {stale[0]} has to run again ({'; '.join(stages[stale[0]]['reasons'])})"


def _upstream(name: str, stages: Mapping[str, Any]) -> Iterator[str]:
    """The stages that a stage needs, upstream first, and the stage itself."""
    seen: dict[str, None] = {}

    def walk(one: str) -> None:
        if one not in seen and one in stages:
            for above in stages[one]["upstream"]:
                walk(above)
            seen[one] = None

    walk(name)
    return iter(seen)
