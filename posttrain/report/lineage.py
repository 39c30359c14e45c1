"""Where the models come from: settings that differ between runs, and what each stage took and made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posttrain.report.policies import Policy, Settings, labels, prompt_ids, read_json, runs
from posttrain.tables.identity import canonical, digest
from posttrain.workspace import metrics_path

STARTS = {"sft": "base", "pairs": "sft", "reward": "sft"}
"""The model that a stage starts from where no setting chooses it."""
SINGLE = ("prepare", "base", "sft", "pairs", "reward")
"""The stages that exist once, in the order in which data flows."""


def flattened(value: Any, prefix: str = "") -> dict[str, str]:
    """Dotted key -> value as text, of nested settings."""
    if isinstance(value, Mapping) and value:
        parts = (flattened(inner, f"{prefix}.{key}" if prefix else str(key)) for key, inner in value.items())
        return {key: text for part in parts for key, text in part.items()}
    return {prefix: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)}


def differing(settings: Settings) -> dict[str, Any]:
    """The runs and those settings in which they are not all alike; None where a run leaves one to its default."""
    found = runs(settings)
    named, flat = labels(found), {path: flattened(run) if run else {} for path, run in found.items()}
    keys = list(dict.fromkeys(key for run in flat.values() for key in run))
    rows = [{"key": key, "values": [run.get(key) for run in flat.values()]} for key in keys]
    return {
        "runs": [named[path] for path in found],
        "differ": [row for row in rows if len(set(row["values"])) > 1 or len(found) == 1],
        "alike": [row for row in rows if len(set(row["values"])) == 1 and len(found) > 1],
    }


def made_from(settings: Settings, policies: list[Policy]) -> list[dict[str, Any]]:
    """Per stage: the model it starts from, the numbers it wrote (rows, tokens, steps), and its settings."""
    found = runs(settings)
    sections = {**{name: settings.get(name) or {} for name in SINGLE}, **found}
    named = labels(found)
    stages = [_stage(path, named.get(path, path), section) for path, section in sections.items()]
    return [*stages, _evaluation(settings, policies)]


def _stage(path: str, label: str, section: Settings) -> dict[str, Any]:
    file = metrics_path(path)
    numbers = read_json(file) if Path(file).is_file() else {}
    start = section.get("start") or section.get("model") or STARTS.get(path, "sft" if "/" in path else "")
    return {
        "label": label,
        "path": path,
        "start": str(start),
        "numbers": {key: value for key, value in numbers.items() if isinstance(value, int | float | str)},
        "settings": flattened(section) if section else {},
    }


def _evaluation(settings: Settings, policies: list[Policy]) -> dict[str, Any]:
    """What all policies were measured on; the digest is that of the prompts' ids."""
    ids = prompt_ids(policies[0])
    section = settings.get("evaluate") or {}
    completions = sum(policy.rollouts.height for policy in policies)
    return {
        "label": "evaluate",
        "path": "evaluate",
        "start": "",
        "numbers": {"prompts": len(ids), "prompts_digest": digest(canonical(ids)), "completions": completions},
        "settings": flattened(section) if section else {},
    }
