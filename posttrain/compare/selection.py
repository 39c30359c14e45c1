"""Selects what is compared: the policies, experiments and sweeps that the command line names."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from posttrain.compare.evaluated import EvaluatedPolicy, Score, check_same_prompts, read_evaluated
from posttrain.compare.experiments import Experiment, experiments, fetch, named, settings_of
from posttrain.compare.settings import Flat, differing
from posttrain.errors import PipelineError
from posttrain.params import PARAMS_FILE, did_you_mean, read
from posttrain.report.lineage import flattened
from posttrain.stage_table import Settings, policies, section_of

WORKSPACE = "workspace"
"""The files of the workspace; `dvc metrics diff` has the same name for them."""


def select(names: Sequence[str], policy: str | None, score: Score, tasks: Sequence[str] = ()) -> list[EvaluatedPolicy]:
    """The evaluated policies that the names stand for, each once; without names every policy of the workspace.

    `tasks`: only the prompts of these tasks count.
    """
    settings = read()
    labels = policies(settings)
    here = [name for name in names if name in labels] or ([] if names else list(labels))
    others = [name for name in names if name not in labels]
    known = experiments() if [name for name in others if name != WORKSPACE] else []
    found = {one.name: one for name in others if name != WORKSPACE for one in _found(name, known, list(labels))}
    measured = [read_evaluated(Path(), label, label, score, tasks) for label in dict.fromkeys(here)]
    if others:
        flat = [settings_of(one) for one in found.values()] + ([flattened(settings)] if WORKSPACE in others else [])
        chosen = policy or _policy(flat, here, settings)
        if WORKSPACE in others:
            measured.append(read_evaluated(Path(), WORKSPACE, chosen, score, tasks))
        measured += [_read(one, chosen, score, tasks) for one in found.values()]
    if not measured:
        fix = "Name policies, experiments or a sweep, or add policies to evaluate.policies"
        raise PipelineError(what="nothing to compare", where=PARAMS_FILE, fix=fix)
    check_same_prompts(measured)
    return measured


def _found(name: str, known: Sequence[Experiment], runs_here: Sequence[str]) -> list[Experiment]:
    found = named(name, known)
    if not found:
        alike = [*runs_here, *(one.name for one in known)]
        fix = f"`dvc exp list` names the experiments. {did_you_mean(name, alike)}".strip()
        raise PipelineError(what=f"no run, experiment or sweep '{name}'", where="compare", fix=fix)
    return found


def _policy(flat: Sequence[Flat], here: Sequence[str], settings: Settings) -> str:
    """The policy to compare: the one named with the experiments, or the one whose settings differ between them."""
    labels = policies(settings)
    if len(set(here)) == 1:
        return here[0]
    if len(labels) == 1:
        return next(iter(labels))
    keys = differing(flat) or [key for key in flat[0] if len({one.get(key) for one in flat}) > 1]
    touched = {".".join(key.split(".")[:3]) for key in keys}
    own = [label for label, model in labels.items() if section_of(settings, model) in touched]
    if len(own) == 1 and len(touched) == 1:
        return own[0]
    what = "the experiments differ in more than one run" if touched else "the experiments have equal settings"
    fix = f"Say which policy to compare: --policy, one of {', '.join(own or labels)}"
    raise PipelineError(what=what, where="compare", fix=fix)


def _read(experiment: Experiment, policy: str, score: Score, tasks: Sequence[str]) -> EvaluatedPolicy:
    with tempfile.TemporaryDirectory() as folder:
        return read_evaluated(fetch(experiment, policy, Path(folder)), experiment.name, policy, score, tasks)
