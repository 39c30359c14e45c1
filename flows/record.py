"""What a flow leaves to read: the table on the terminal and the artifacts in Prefect."""

from __future__ import annotations

import base64
import contextlib
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import vl_convert

from flows.graph import Stage, mermaid
from posttrain.errors import PipelineError
from posttrain.measure.timings import FOLDER, timings_table
from posttrain.report.plots_page import vegalite_5
from posttrain.workspace import library_command, library_environment

MOST_PLOTS = 12


@dataclass(frozen=True)
class Outcome:
    """How one stage ended: Completed, RunCached, Cached, Failed, Cancelled or NotRun."""

    state: str
    seconds: float = 0.0
    message: str = ""


def table(stages: Sequence[Stage], outcomes: Mapping[str, Outcome]) -> str:
    """The stages with their states and seconds, for the terminal."""
    rows = [(row["stage"], row["state"], f"{row['seconds']:.1f}") for row in rows_of(stages, outcomes)]
    first, second = (max(map(len, column)) for column in list(zip(("stage", "state", ""), *rows, strict=True))[:2])
    lines = [f"{'stage':<{first}}  {'state':<{second}}  seconds"]
    return "\n".join(lines + [f"{name:<{first}}  {state:<{second}}  {seconds:>7}" for name, state, seconds in rows])


def rows_of(stages: Sequence[Stage], outcomes: Mapping[str, Outcome]) -> list[dict[str, Any]]:
    """One row per stage, in the order of the DAG."""
    rows = []
    for stage in stages:
        outcome = outcomes.get(stage.name, Outcome("NotRun"))
        why = "; ".join(stage.reasons)
        row = {"stage": stage.name, "state": outcome.state, "seconds": round(outcome.seconds, 2), "stale because": why}
        rows.append(row)
    return rows


def publish(root: Path, stages: Sequence[Stage], outcomes: Mapping[str, Outcome]) -> None:
    """Make the artifacts of the flow run that this is called in."""
    from prefect.artifacts import create_markdown_artifact, create_table_artifact

    create_table_artifact(rows_of(stages, outcomes), key="stages", description="Stages with their states and seconds")
    if all(outcome.state == "Cached" for outcome in outcomes.values()):
        return
    states = {name: outcome.state for name, outcome in outcomes.items()}
    about = "The DAG of dvc.yaml, as mermaid: GitHub, GitLab and VS Code draw it. Prefect draws it above the run's logs"
    create_markdown_artifact(f"```mermaid\n{mermaid(stages, states)}\n```", key="dag", description=about)
    with contextlib.suppress(PipelineError):  # stages that ran on other hosts have left none here
        spent = timings_table(root / FOLDER)
        create_markdown_artifact(f"```\n{spent}\n```", key="timings", description="What each stage's time went into")
    if any(outcome.state == "Failed" for outcome in outcomes.values()):
        _posttrain(root, "report")  # the page of an earlier run must not stand for this one
    if rows := results(root):
        create_table_artifact(rows, key="results", description="Every policy with its figures, or why it has none")
    changed = metrics_diff(root)
    if changed:
        create_table_artifact(changed, key="metrics", description="Metrics against the last commit")
    # Not as image artifacts: Prefect's page prints the address of each, which is the whole picture, across the screen.
    if drawn := "\n\n".join(f"![{title}]({image})" for title, image in plots(root).items()):
        create_markdown_artifact(drawn, key="plots", description="The plots that dvc.yaml names")


def results(root: Path) -> list[dict[str, Any]]:
    """What `python -m posttrain results` says, one row per policy; empty where nothing is evaluated."""
    rows: list[dict[str, Any]] = json.loads(_posttrain(root, "results", "--json") or "[]")
    shown = ("policy", "score", "low", "high", "greedy", "kl", "error")
    return [{key: row.get(key, "") for key in shown} for row in rows]


def _posttrain(root: Path, *words: str) -> str:
    """What a command of ours prints; empty where it fails, as in a project without policies."""
    command, env = library_command("posttrain", *words), library_environment()
    done = subprocess.run(
        command, check=False, cwd=root, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    return done.stdout if done.returncode == 0 else ""


def plots(root: Path) -> dict[str, str]:
    """The plots of the report and those that dvc.yaml names, as DVC shows them: title -> PNG as a data URI."""
    shown = _asked_of_dvc(root, "plots", "show", "--json").get("data", {})
    named = {title: parts for title, parts in shown.items() if "/" not in title or title.startswith("report/")}
    return {
        title: f"data:image/png;base64,{base64.b64encode(_drawn(part['content'])).decode()}"
        for title, parts in list(named.items())[:MOST_PLOTS]
        for part in parts
        if part.get("type") == "vega"
    }


def _drawn(spec: str | dict[str, Any]) -> bytes:
    return bytes(vl_convert.vegalite_to_png(spec, vl_version=vegalite_5()))


def _asked_of_dvc(root: Path, *words: str) -> dict[str, Any]:
    """DVC's answer in JSON; empty where it has none."""
    command = [sys.executable, "-m", "dvc", "--wait-for-lock", *words]
    answer = subprocess.run(command, check=False, cwd=root, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(answer.stdout or "{}") if answer.returncode == 0 else {}
    return found


def metrics_diff(root: Path) -> list[dict[str, Any]]:
    """What `dvc metrics diff` says, one row per metric; empty before the first commit or without changes."""
    files: Mapping[str, Mapping[str, Mapping[str, Any]]] = _asked_of_dvc(root, "metrics", "diff", "--json")
    return [
        {"file": file, "metric": metric, **{key: _short(change.get(key)) for key in ("old", "new", "diff")}}
        for file, metrics in files.items()
        for metric, change in metrics.items()
    ]


def _short(value: Any) -> Any:
    """Without the last digits of a float, where the error of a difference is."""
    return float(f"{value:.6g}") if isinstance(value, float) else value
