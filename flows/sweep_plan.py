"""The plan of a sweep, checked before any work: its experiments, finished experiments, and the stages of each."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from posttrain.errors import PipelineError
from posttrain.pipeline.compare.earlier import why_again
from posttrain.pipeline.compare.experiments import experiments
from posttrain.pipeline.lineage.kept_inputs import require_kept
from posttrain.pipeline.lock.git import git, git_or_none
from posttrain.pipeline.params.params_file import read
from posttrain.pipeline.params.seeds import SEED
from posttrain.pipeline.params.stage_table import evaluated
from posttrain.pipeline.params.yaml_files import read_yaml
from posttrain.pipeline.workspace import PARAMS_FILE
from posttrain.settings.plain import flattened

from .gpu_slots import devices
from .graph import GraphReader, Stage, is_posttrain_pipeline, stale
from .sweep_config import Sweep, Trial, check_committed, check_trials, placed, trials
from .sweep_targets import closure, is_named, missing_evaluations, without_effect

MAX_JOBS = 4


@dataclass(frozen=True)
class Plan:
    """A sweep of the workspace, ready to run."""

    name: str
    planned: Sequence[Trial]
    done: frozenset[str]
    """The names of experiments that have run with the code, data and settings of this commit."""
    stages: Sequence[Stage]
    targets: Sequence[str]
    measured: Sequence[str]
    """The policies that its targets evaluate; empty if it has no targets."""
    again: Mapping[str, str] = field(default_factory=dict)
    """Name -> why an experiment that ran at another commit must run again."""

    @property
    def pending(self) -> list[Trial]:
        """The experiments that have not run."""
        return [experiment for experiment in self.planned if experiment.name not in self.done]

    @property
    def gpus(self) -> int:
        """The GPUs of an experiment."""
        return max((stage.needs.gpus for stage in self.stages), default=0)

    @property
    def warm_up(self) -> int:
        """The number of experiments to run first: 1 if stages are stale, so that the others can reuse its results."""
        return 1 if stale(self.stages) else 0

    def jobs(self, given: int | None) -> int:
        """Return the number of experiments to run at once."""
        if given:
            return given
        return max(1, len(devices()) // self.gpus) if self.gpus else min(MAX_JOBS, os.cpu_count() or 1)


def plan_sweep(root: Path, name: str, sweep: Sweep, where: str = "sweep") -> Plan:
    """Return the plan of a sweep. Reject wrong settings, uncommitted changes, and inputs that are not stored.

    `where`: what an error names.
    """
    check_committed(where, "Commit them, so that each experiment says what it was made from: git commit -a")
    planned = trials(name, sweep)
    check_trials(planned, where)
    require_kept(where, (experiment.overrides for experiment in planned))
    check_free(root, name)
    done, again = _finished(planned)
    return Plan(name, planned, frozenset(done), *_to_run(root, sweep), again)


def check_free(root: Path, name: str) -> None:
    """Reject a sweep with the name of a policy, branch or tag, because `compare` would confuse them."""
    if is_posttrain_pipeline(root) and name in (runs := evaluated(read())) | {run.model: run for run in runs.values()}:
        what, fix = f"'{name}' is the name of a policy in {PARAMS_FILE}", "Choose another name"
        raise PipelineError(what=what, where="sweep", fix=fix)
    if git_or_none("rev-parse", "--verify", "--quiet", "--end-of-options", name) is not None:
        raise PipelineError(
            what=f"git already has a branch, tag or commit '{name}'", where="sweep", fix="Choose another name"
        )


def _to_run(root: Path, sweep: Sweep) -> tuple[list[Stage], list[str], list[str]]:
    """Return the stages per experiment, the targets with evaluations of trained models, and those policies.

    If the sweep has no targets, there are no policies.
    """
    stages, targets = GraphReader(root).stages, list(sweep.targets)
    if not targets:
        return stages, targets, []
    known = all(any(is_named(stage.name, [target]) for stage in stages) for target in targets)
    # DVC itself refuses what it does not know; an output is a target too.
    ran = closure(stages, targets) if known else GraphReader(root, targets).stages
    if is_posttrain_pipeline(root) and (lost := without_effect(ran, sweep.swept)):
        what, fix = f"none of the targets depends on {lost[0]}", "Choose targets that the setting changes, or none"
        raise PipelineError(what=what, where="sweep, targets", fix=fix)
    added: list[str] = []
    if is_posttrain_pipeline(root):
        added, unmeasured = missing_evaluations(read(), ran, targets, [*sweep.swept, *sweep.seed_keys] or [SEED])
        if added:
            print(f"added to the targets, so that what is trained is also measured: {', '.join(added)}")
        for model in unmeasured:
            print(f"note: {PARAMS_FILE} has no evaluation of {model}, so `posttrain compare` will have no score of it")
    chosen = [*targets, *added]
    runs = evaluated(read()) if is_posttrain_pipeline(root) else {}
    policies = [label for label, run in runs.items() if is_named(run.stage, chosen)]
    return closure(stages, [*(stage.name for stage in ran), *added]), chosen, policies


def _finished(planned: Sequence[Trial]) -> tuple[set[str], dict[str, str]]:
    """Return the names of the trials whose result is there, and why those that ran at another commit run again."""
    head, settings = git("rev-parse", "HEAD").strip(), read_yaml(PARAMS_FILE)
    done, again = set[str](), dict[str, str]()
    known = experiments()
    for trial in planned:
        wanted = settings
        for key, value in trial.overrides.items():
            wanted = placed(wanted, key, value)
        for experiment in (one for one in known if one.name == trial.name):
            why = why_again(experiment, flattened(wanted), head)
            if not why:
                done.add(trial.name)
                again.pop(trial.name, None)
                break
            then = "" if experiment.baseline == head else "since then "
            again[trial.name] = f"it ran at commit {experiment.baseline[:7]}; {then}{why}"
    return done, again
