"""The results of a flow run: the table on the terminal and the artifacts in Prefect."""

from __future__ import annotations

import base64
import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from posttrain.errors import PipelineError
from posttrain.isolation.library import library_command, library_environment
from posttrain.measure.terminal import escaped
from posttrain.measure.text_table import text_table
from posttrain.measure.timings import FOLDER, timings_table
from posttrain.pipeline.params.yaml_files import read_yaml
from posttrain.pipeline.report.heading import PAGE_SO_FAR
from posttrain.pipeline.report.plots_page import vegalite_5

from .graph import Stage
from .sweep_page import write_page

MAX_PLOTS = 12


@dataclass(frozen=True)
class Outcome:
    """The final state of one stage: Completed, RunCached, Cached, Failed, Cancelled or NotRun."""

    state: str
    seconds: float = 0.0
    message: str = ""
    cause: str = ""
    """The cause of a failure in one line."""


_NOT_RUN = Outcome("NotRun")
_FIRST = {state: place for place, state in enumerate(("Failed", "Cancelled", "NotRun", "Completed"))}
"""The columns that operators look for come first."""
_NONE = "This run has none."
_CURRENT = ("Completed", "RunCached", "Cached")


def table(stages: Sequence[Stage], outcomes: Mapping[str, Outcome]) -> str:
    """Return the stages with their states and seconds, for the terminal."""
    rows = [(row["stage"], row["state"], f"{row['seconds']:.1f}") for row in rows_of(stages, outcomes)]
    return "\n".join(text_table([("stage", "state", "seconds"), *rows], left=(0, 1)))


def rows_of(stages: Sequence[Stage], outcomes: Mapping[str, Outcome]) -> list[dict[str, Any]]:
    """Return one row per stage in the order of the DAG."""
    rows = []
    for stage in stages:
        outcome = outcomes.get(stage.name, _NOT_RUN)
        why = "; ".join(stage.reasons)
        row = {"stage": stage.name, "state": outcome.state, "seconds": round(outcome.seconds, 2), "stale because": why}
        rows.append(row)
    return rows


def publish(root: Path, stages: Sequence[Stage], outcomes: Mapping[str, Outcome]) -> None:
    """Create the artifacts of the current flow run. Results that this run has not made are left empty."""
    from prefect.artifacts import create_markdown_artifact, create_table_artifact

    rows = sorted(rows_of(stages, outcomes), key=lambda row: _FIRST.get(row["state"], len(_FIRST)))
    failed = any(outcome.state == "Failed" for outcome in outcomes.values())
    page = PAGE_SO_FAR if failed else "report/report.html"
    about = f"Stages with their states and seconds. Logs: {root / 'logs'}; the page: {root / page}"
    create_table_artifact(safe_rows(rows), key="stages", description=about)
    if all(outcome.state == "Cached" for outcome in outcomes.values()):
        return
    print("Publishing results, metrics and plots to Prefect", flush=True)  # takes seconds
    timings = ""
    with contextlib.suppress(PipelineError):  # stages that ran on other hosts have no timings here
        timings = f"```\n{timings_table(root / FOLDER, [stage.name for stage in stages])}\n```"
    create_markdown_artifact(escaped(timings) or _NONE, key="timings", description="Time of each part of each stage")
    if failed:  # the page under report/ is that of an earlier run
        print(_posttrain(root, "show", "report"), end="", flush=True)
    create_markdown_artifact(_shown_results(root, page), key="results", description="The table of the report's page")
    # Figures of stages that this flow has run or found current: the others may have those of earlier params.
    current = [stage for stage in stages if outcomes.get(stage.name, _NOT_RUN).state in _CURRENT]
    changed = metrics_diff(root, [file for stage in current for file in stage.metrics])
    create_table_artifact(
        safe_rows(changed), key="metrics", description="Metrics of this run that differ from the last commit"
    )
    # Not as image artifacts: Prefect's page would print the address of each, which contains the whole picture.
    drawn = plots(root, [file for stage in current for file in stage.plots])
    images = "\n\n".join(f"![{title}]({image})" for title, image in drawn.items())
    create_markdown_artifact(escaped(images) or _NONE, key="plots", description="The plots in dvc.yaml")


def publish_sweep(root: Path, name: str, measured: Sequence[str]) -> None:
    """Create the artifacts of a sweep: its experiments (best first), the comparison, and the page's path."""
    from prefect.artifacts import create_markdown_artifact, create_table_artifact

    words = ("compare", name, *(["--policy", measured[-1]] if measured else []))
    compared = _posttrain(root, *words)
    comparison = json.loads(_posttrain(root, *words, "--json") or "{}")
    rows = [
        {**one["varied"], "seeds": one["seeds"], "score": _rounded(one["value"])}
        | {key: _rounded(one[key]) for key in ("low", "high")}
        | {key: _rounded(number) for key, number in one["spent"].items()}
        | {"its models": one["weights"]}
        for one in comparison.get("settings", [])
    ]
    create_table_artifact(
        safe_rows(rows), key="sweep", description=escaped(f"{write_page(name, measured)} (in {root})")
    )
    text = f"```\n{compared}\n```" if compared else _NONE
    create_markdown_artifact(escaped(text), key="comparison", description=f"Output of `posttrain compare {name}`")


def safe_rows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows with texts that are safe in Prefect's UI, because names may contain marks that reverse a line."""
    return [
        {escaped(key): escaped(cell) if isinstance(cell, str) else cell for key, cell in row.items()} for row in rows
    ]


def _shown_results(root: Path, page: str) -> str:
    """Return the page's table in Markdown, and where the page and the logs are."""
    shown = _posttrain(root, "show", "results", "--markdown").strip()
    where = f"Page: [{page}]({(root / page).as_uri()}), or `posttrain watch` in `{root}`. Logs: `{root / 'logs'}`"
    return f"{escaped(shown) or _NONE}\n\n{escaped(where)}"


def _posttrain(root: Path, *words: str) -> str:
    """Return the output of a posttrain command; empty if it fails, e.g. in a project without policies."""
    command, env = library_command("posttrain", *words), library_environment()
    done = subprocess.run(
        command, check=False, cwd=root, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    return done.stdout if done.returncode == 0 else ""


def plots(root: Path, files: Sequence[str]) -> dict[str, str]:
    """Return title -> PNG as a data URI, for these plots of the report or the plots in dvc.yaml, drawn like DVC.

    Without the extra `plots` the result is empty.
    """
    if find_spec("vl_convert") is None:
        return {}
    named = [title for title, drawn in _named_plots(root) if drawn <= set(files)]
    shown = [*named, *(file for file in files if file.startswith("report/"))]
    selected = _dvc_json(root, "plots", "show", "--json", *shown).get("data", {}) if shown else {}
    return {
        title: f"data:image/png;base64,{base64.b64encode(_png(part['content'])).decode()}"
        for title, parts in list(selected.items())[:MAX_PLOTS]
        for part in parts
        if part.get("type") == "vega"
    }


def _named_plots(root: Path) -> Iterator[tuple[str, set[str]]]:
    """Yield the title of each plot in dvc.yaml, and its files."""
    for entry in read_yaml(root / "dvc.yaml").get("plots") or ():
        for title, spec in entry.items() if isinstance(entry, Mapping) else [(entry, None)]:
            drawn = (spec or {}).get("y")
            yield title, set(drawn) if isinstance(drawn, Mapping) else {title}


def _png(spec: str | dict[str, Any]) -> bytes:
    import vl_convert

    return bytes(vl_convert.vegalite_to_png(spec, vl_version=vegalite_5()))


def _dvc_json(root: Path, *words: str) -> dict[str, Any]:
    """Return the JSON that a DVC command prints; empty if it fails."""
    command = [sys.executable, "-m", "dvc", "--wait-for-lock", *words]
    done = subprocess.run(command, check=False, cwd=root, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    data: dict[str, Any] = json.loads(done.stdout or "{}") if done.returncode == 0 else {}
    return data


def metrics_diff(root: Path, targets: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rows of `dvc metrics diff`, one per metric; empty before the first commit or without changes."""
    if not targets:
        return []
    files: Mapping[str, Mapping[str, Mapping[str, Any]]] = _dvc_json(
        root, "metrics", "diff", "--json", "--targets", *targets
    )
    return [
        {"file": file, "metric": metric, **{key: _rounded(change.get(key)) for key in ("old", "new", "diff")}}
        for file, metrics in files.items()
        for metric, change in metrics.items()
    ]


def _rounded(value: Any) -> Any:
    """Return a float without its last digits, which show the rounding error of a difference."""
    return float(f"{value:.6g}") if isinstance(value, float) else value
