"""The origin of the models: settings that differ between runs, and the inputs and metrics of each run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from posttrain.data.columns import canonical, digest
from posttrain.pipeline.params.stage_table import STAGES, Settings, curve_runs, group_of, model_runs, policies
from posttrain.pipeline.report.policies import Policy, prompt_ids, read_json
from posttrain.pipeline.workspace import metrics_path
from posttrain.settings.plain import flattened

INPUTS = ("start", "policy", "teacher", "data", "path", "name", "task")
"""The settings that name a run's inputs."""


def differing(settings: Settings) -> dict[str, Any]:
    """Return the runs with an algorithm, and the settings that differ between them; None stands for a default."""
    runs = {path: run for path, run in model_runs(settings).items() if "algorithm" in run}
    named = labels(settings)
    flat = {path: flattened(run) if run else {} for path, run in runs.items()}
    keys = list(dict.fromkeys(key for run in flat.values() for key in run))
    rows = [{"key": key, "values": [run.get(key) for run in flat.values()]} for key in keys]
    return {
        "runs": [named[path] for path in runs],
        "differ": [row for row in rows if len(set(row["values"])) > 1 or len(runs) == 1],
        "alike": [row for row in rows if len(set(row["values"])) == 1 and len(runs) > 1],
    }


def labels(settings: Settings) -> dict[str, str]:
    """Return model or curve -> displayed name: the evaluation's label if there is one, else the folder."""
    evaluated = {model: label for label, model in reversed(policies(settings).items())}
    return {path: evaluated.get(path, path) for path in curve_runs(settings)}


def made_from(settings: Settings, evaluated_policies: list[Policy]) -> list[dict[str, Any]]:
    """Return each run's start model, its numbers (rows, tokens, steps), and its settings."""
    runs = [
        _run(f"data/{name}" if stage.makes == "tables" else stage.output(name), run or {})
        for stage in STAGES
        if stage.makes in ("tables", "model")
        for name, run in group_of(settings, stage.group).items()
    ]
    return [*runs, *([_evaluation(settings, evaluated_policies)] if evaluated_policies else [])]


def _run(path: str, section: Settings) -> dict[str, Any]:
    file = metrics_path(path)
    numbers = read_json(file) if Path(file).is_file() else {}
    return {
        "label": path,
        "path": path,
        "start": ", ".join(str(section[key]) for key in INPUTS if key in section),
        "numbers": {key: value for key, value in numbers.items() if isinstance(value, int | float | str)},
        "settings": flattened(section) if section else {},
    }


def _evaluation(settings: Settings, evaluated_policies: list[Policy]) -> dict[str, Any]:
    """Return the evaluation's data and size. The digest is of the prompts' ids."""
    ids = prompt_ids(evaluated_policies[0])
    section = group_of(settings, "evaluate.settings")
    completions = sum(policy.rollouts.height for policy in evaluated_policies)
    return {
        "label": "evaluate",
        "path": "evaluate",
        "start": str(section.get("data", "")),
        "numbers": {"prompts": len(ids), "prompts_digest": digest(canonical(ids)), "completions": completions},
        "settings": flattened(section) if section else {},
    }
