"""The stages of a sweep: its targets, and evaluations of the sweep's trained runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from posttrain.pipeline.params.seeds import SEED
from posttrain.pipeline.params.stage_table import evaluated, group_named, model_runs, stage_of

from .graph import Stage


def closure(stages: Sequence[Stage], targets: Collection[str]) -> list[Stage]:
    """Return the targets (stages or groups of a foreach) with all dependencies."""
    wanted: set[str] = set()
    for stage in reversed(stages):  # upstream stages come first
        if is_named(stage.name, targets) or stage.name in wanted:
            wanted |= {stage.name, *stage.upstream}
    return [stage for stage in stages if stage.name in wanted]


def is_named(stage: str, targets: Collection[str]) -> bool:
    """Tell whether the targets contain the stage or its group."""
    return stage in targets or stage.partition("@")[0] in targets


def without_effect(ran: Sequence[Stage], swept: Iterable[str]) -> list[str]:
    """Return the varied keys of runs that none of the stages is or needs. `evaluate.settings` is not a run."""
    sections = [section for stage in ran if (section := _section(stage.name))]
    runs = [key for key in swept if key != SEED and not key.startswith("evaluate.")]
    return [key for key in runs if not any(f"{key}.".startswith(f"{section}.") for section in sections)]


def missing_evaluations(
    settings: Any, ran: Sequence[Stage], targets: Collection[str], swept: Iterable[str]
) -> tuple[list[str], list[str]]:
    """Return the evaluations to add to a sweep's targets, and its trained models without an evaluation.

    `ran`: the targets with all dependencies. A sweep trains targets that make a model. Of the others, it trains those
    whose settings, or whose start's settings, it varies.
    """
    keys = [f"{key}." for key in swept]
    every = f"{SEED}." in keys
    changed: set[str] = set()
    for stage in ran:
        section = _section(stage.name)
        is_swept = every or any(key.startswith(f"{section}.") or section.startswith(key) for key in keys)
        if is_swept or changed.intersection(stage.upstream):
            changed.add(stage.name)
    models = {stage_of(settings, model): model for model in model_runs(settings)}
    names = [one.name for one in ran if one.name in changed or is_named(one.name, targets)]
    trained = {models[name] for name in names if name in models}
    measures = {run.stage: run.model for run in evaluated(settings).values() if not run.stage.startswith("lm_eval@")}
    there = {stage.name for stage in ran}
    added = sorted(name for name, model in measures.items() if model in trained and name not in there)
    return added, sorted(trained - set(measures.values()))


def _section(stage: str) -> str:
    """Return the section of a stage in params.yaml: online@grpo -> online.runs.grpo; empty for other stages."""
    kind, _, run = stage.partition("@")
    group = group_named(kind)
    return f"{group}.{run}" if group else ""
