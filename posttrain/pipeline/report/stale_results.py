"""Find results that are out of date for the current params, data and code, with reasons, even while DVC runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from posttrain.errors import shortened
from posttrain.pipeline.lock.code_manifest import CODE
from posttrain.pipeline.lock.reasons import Reasons
from posttrain.pipeline.lock.running import running_stages
from posttrain.pipeline.params.params_file import read
from posttrain.pipeline.params.stage_table import Settings, evaluated, group_of
from posttrain.pipeline.workspace import PARAMS_FILE, failure_path, metrics_path

NOT_RUN = "not run yet"
NOT_HERE = "it ran elsewhere: `dvc pull` gets its results, `dvc repro` makes them again"
LONGEST = 300


@dataclass(frozen=True)
class Staleness:
    """The results that are out of date."""

    running: tuple[str, ...]
    """The running stages."""
    reasons: Mapping[str, str]
    """Label -> why its results are out of date."""


def staleness(labels: Collection[str] | None = None) -> Staleness:
    """Return the labels (default: all) with a stage that failed, is running, has not run, or has changed inputs."""
    results, reasons = _results(read()), Reasons()
    running = tuple(running_stages(reasons.pipeline))
    stages = {
        label: _reason(stage, file, reasons, running)
        for label, (stage, file) in results.items()
        if labels is None or label in labels
    }
    reasons.keep()
    return Staleness(running, {label: reason for label, reason in stages.items() if reason})


def _results(settings: Settings) -> dict[str, tuple[str, Path]]:
    """Return label -> stage and file, for evaluations, ratings, and reward models with metrics."""
    results = {label: (run.stage, Path(f"results/{label}/metrics.json")) for label, run in evaluated(settings).items()}
    for name in group_of(settings, "evaluate.ratings"):
        results[f"ratings/{name}"] = (f"evaluate_ratings@{name}", metrics_path(f"ratings/{name}"))
    for name in group_of(settings, "regrade.runs"):
        results[f"regrade/{name}"] = (f"regrade@{name}", metrics_path(f"regrade/{name}"))
    rewards = {name: metrics_path(f"reward/{name}") for name in group_of(settings, "reward.runs")}
    return results | {f"reward/{name}": (f"reward@{name}", file) for name, file in rewards.items() if file.is_file()}


def _reason(name: str, file: Path, reasons: Reasons, running: tuple[str, ...]) -> str:
    """Return the cause that is furthest upstream; empty if everything is current."""
    above = [stage for stage in reasons.pipeline.above(name) if stage != CODE]
    if runs := next((stage for stage in above if stage in running), None):
        return f"{runs} is running"
    stale = [stage for stage in above if reasons.of(stage)]
    for outdated in stale:
        failure = failure_path(outdated)
        if failure.is_file() and failure.stat().st_mtime >= Path(PARAMS_FILE).stat().st_mtime:  # else it was edited
            first = failure.read_text(encoding="utf-8").strip().partition("\n")[0]
            return f"failed: {outdated}: {shortened(first, LONGEST)}"
    if not stale:
        return ""
    if not file.is_file():
        return NOT_HERE if all(map(reasons.is_absent, stale)) else NOT_RUN
    return f"out of date: {stale[0]} has to run again ({'; '.join(reasons.of(stale[0]))})"
