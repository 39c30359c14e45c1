"""Which results are out of date for the current params, data and code, and why; read while DVC runs, too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from posttrain.params.params import PARAMS_FILE
from posttrain.pipeline.code_manifest import CODE
from posttrain.pipeline.reasons import Reasons
from posttrain.pipeline.running import running_stages
from posttrain.workspace import failure_path

NOT_RUN = "not run yet"
LONGEST = 300


@dataclass(frozen=True)
class Staleness:
    """What of the results is not current."""

    running: tuple[str, ...]
    """The stages that run now."""
    reasons: Mapping[str, str]
    """Label -> why its results are not current."""


def staleness(labels: Iterable[str]) -> Staleness:
    """Return a stage failed, runs now, has not run, or its inputs have changed; a label with `/` is STAGE/RUN."""
    reasons = Reasons()
    running = tuple(running_stages(reasons.pipeline))
    stages = {label: label.replace("/", "@") if "/" in label else f"evaluate@{label}" for label in labels}
    found = {label: _reason(stage, reasons, running) for label, stage in stages.items()}
    reasons.keep()
    return Staleness(running, {label: reason for label, reason in found.items() if reason})


def _reason(name: str, reasons: Reasons, running: tuple[str, ...]) -> str:
    """Return the cause that is furthest upstream; empty if everything is current."""
    above = [stage for stage in reasons.pipeline.above(name) if stage != CODE]
    if runs := next((stage for stage in above if stage in running), None):
        return f"{runs} is running"
    stale = [stage for stage in above if reasons.of(stage)]
    for outdated in stale:
        file = failure_path(outdated)
        if file.is_file() and file.stat().st_mtime >= Path(PARAMS_FILE).stat().st_mtime:  # else params.yaml was edited
            first = file.read_text(encoding="utf-8").strip().partition("\n")[0]
            return f"failed: {outdated}: {first[:LONGEST]}"
    if not stale:
        return ""
    missing = Path("results") / name.removeprefix("evaluate@").replace("@", "/") / "metrics.json"
    if not missing.is_file():
        return NOT_RUN
    return f"out of date: {stale[0]} has to run again ({'; '.join(reasons.of(stale[0]))})"
