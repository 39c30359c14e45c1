"""What the names on the command line stand for: runs of the workspace, experiments, sweeps."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from posttrain.compare.experiments import Experiment, experiments, fetch, named, settings_of
from posttrain.compare.measured import Measured, Score, check_same_prompts, read_measured
from posttrain.compare.settings import Flat, differing
from posttrain.errors import PipelineError
from posttrain.params import PARAMS_FILE, did_you_mean, read
from posttrain.report.lineage import flattened
from posttrain.report.policies import ALONE, labels, runs

WORKSPACE = "workspace"
"""The files as they lie here; `dvc metrics diff` calls them so too."""


def choose(names: Sequence[str], policy: str | None, score: Score) -> list[Measured]:
    """All that the names stand for, each training once; without names every run of the workspace."""
    paths = _runs_here()
    here = [paths[name] for name in names if name in paths] or (
        [] if names else [path for path in paths if "/" in path]
    )
    others = [name for name in names if name not in paths]
    known = experiments() if [name for name in others if name != WORKSPACE] else []
    found = {one.name: one for name in others if name != WORKSPACE for one in _found(name, known, list(paths))}
    root, called = Path(), labels(dict.fromkeys(paths.values()))
    measured = [read_measured(root, called[path], path, score) for path in dict.fromkeys(here)]
    if others:
        policy = policy and paths.get(policy, policy)
        flat = [settings_of(one) for one in found.values()] + ([flattened(read())] if WORKSPACE in others else [])
        chosen = policy or _policy(flat, here)
        if WORKSPACE in others:
            measured.append(read_measured(root, WORKSPACE, chosen, score))
        measured += [_read(one, chosen, score) for one in found.values()]
    if not measured:
        mend = "Name runs, experiments or a sweep, or add runs to params.yaml"
        raise PipelineError(what="there is no run to compare", where=PARAMS_FILE, mend=mend)
    check_same_prompts(measured)
    return measured


def _runs_here() -> dict[str, str]:
    """Label and path -> path of every policy of the workspace."""
    paths = [*ALONE, *runs(read())]
    called = labels(paths)
    return {**{path: path for path in paths}, **{called[path]: path for path in paths}}


def _found(name: str, known: Sequence[Experiment], runs_here: Sequence[str]) -> list[Experiment]:
    found = named(name, known)
    if not found:
        alike = [*runs_here, *(one.name for one in known)]
        mend = f"`dvc exp list` names the experiments. {did_you_mean(name, alike)}".strip()
        raise PipelineError(what=f"no run, experiment or sweep '{name}'", where="compare", mend=mend)
    return found


def _policy(flat: Sequence[Flat], here: Sequence[str]) -> str:
    """The policy to look at: the one named beside the experiments, or the run that their settings differ in."""
    if len(set(here)) == 1:
        return here[0]
    keys = differing(flat) or [key for key in flat[0] if len({one.get(key) for one in flat}) > 1]
    families = {tuple(key.split(".")[:3]) for key in keys}
    named_runs = {f"{parts[0]}/{parts[2]}" for parts in families if parts[1:2] == ("runs",)}
    if len(named_runs) == 1 and len(families) == 1:
        return named_runs.pop()
    candidates = ", ".join(sorted(named_runs or set(runs(read()))))
    what = "the experiments differ in more than one run" if families else "the experiments have equal settings"
    raise PipelineError(what=what, where="compare", mend=f"Say which policy to look at: --policy, one of {candidates}")


def _read(experiment: Experiment, policy: str, score: Score) -> Measured:
    with tempfile.TemporaryDirectory() as folder:
        return read_measured(fetch(experiment, policy, Path(folder)), experiment.name, policy, score)
