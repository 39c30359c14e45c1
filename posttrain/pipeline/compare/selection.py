"""Select what to compare: the policies, experiments and sweeps on the command line."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from posttrain.errors import DataError, PipelineError
from posttrain.pipeline.compare.belonging import Belonging, of_experiment, of_workspace
from posttrain.pipeline.compare.cells import LeftOut
from posttrain.pipeline.compare.earlier import since, sorted_out
from posttrain.pipeline.compare.effective import alike, sections_behind
from posttrain.pipeline.compare.evaluated import EvaluatedPolicy, check_same_prompts, read_evaluated
from posttrain.pipeline.compare.experiments import (
    Experiment,
    check_policy,
    commit,
    experiments,
    fetch,
    named,
    read_settings,
    settings_of,
    unfinished,
    without_folder,
)
from posttrain.pipeline.compare.factors import Flat, differing
from posttrain.pipeline.compare.paired import Score
from posttrain.pipeline.lock.digests import LOCK
from posttrain.pipeline.params.params_file import read
from posttrain.pipeline.params.stage_table import Evaluated, Settings, evaluated, section_of
from posttrain.pipeline.params.yaml_files import read_yaml
from posttrain.pipeline.workspace import PARAMS_FILE
from posttrain.settings.params import did_you_mean
from posttrain.settings.plain import flattened

WORKSPACE = "workspace"
"""The workspace's own files, by the name that `dvc metrics diff` uses."""
HEAD = "HEAD"


@dataclass(frozen=True)
class Selection:
    """The resolved names of a command line."""

    policies: list[EvaluatedPolicy]
    left_out: list[LeftOut]
    """The experiments of a sweep whose results are not their own."""
    unfinished: list[str] = field(default_factory=list)
    """The experiments of a sweep without a result."""
    notes: list[str] = field(default_factory=list)
    """What the reader must know about the selection."""
    home: Flat = field(default_factory=dict)
    """The settings of params.yaml, in the texts of the others."""


def selected(
    names: Sequence[str], policy: str | None, score: Score, tasks: Sequence[str] = (), table: str | None = None
) -> Selection:
    """Return the evaluated policies for these names, each once; without names, all policies of a table.

    `tasks`: only use the prompts of these tasks. `table`: None means the one of `evaluate.settings`, or the first.
    """
    settings = read()
    runs = evaluated(settings)
    labels = {label: run.model for label, run in runs.items()}
    names, policy = [_label(name, labels) for name in names], policy and _label(policy, labels)
    here = [name for name in names if name in labels] or ([] if names else _of_table(runs, table))
    others = [name for name in names if name not in labels]
    known = experiments() if [name for name in others if name != WORKSPACE] else []
    named_by = {name: _experiments_named(name, known, list(labels)) for name in others if name != WORKSPACE}
    partner = _partner(others, named_by) if len(names) == 1 else None
    if partner is not None:
        others.append(partner)
        named_by |= {partner: commit(partner)} if partner != WORKSPACE else {}
    by_name = {experiment.name: experiment for several in named_by.values() for experiment in several}
    wholes = {name: several for name, several in named_by.items() if any(one.name != name for one in several)}
    measured = [_here(label, label, score, tasks, runs) for label in dict.fromkeys(here)]
    left_out, notes = list[LeftOut](), list[str]()
    if policy and policy not in labels and not others:
        check_policy(policy, labels, "compare --policy")
    if others:
        workspace = [flattened(read_yaml(PARAMS_FILE))] if WORKSPACE in others else []
        flat_settings = [*(settings_of(experiment) for experiment in by_name.values()), *workspace]
        chosen = policy or _policy(flat_settings, here, settings)
        if WORKSPACE in others:
            measured.append(_here(WORKSPACE, chosen, score, tasks, runs))
        head = by_name.pop(HEAD) if partner == HEAD else None
        more, left_out, notes = _those_that_belong(by_name.values(), wholes, chosen, score, tasks)
        measured += more
        if head is not None:
            measured += _with_head(head, names[0], notes, chosen, score, tasks)
        elif partner is not None:
            notes.append(f"{names[0]} is compared with {partner}, because it is the only name")
    if not measured:
        fix = "Name policies, experiments or a sweep, or add policies to evaluate.policies"
        raise PipelineError(what="nothing to compare", where=PARAMS_FILE, fix=fix)
    check_same_prompts(measured)
    settings_left_out = [read_settings(by_name[one.name]) for one in left_out]
    measured, (home, *texts) = alike(measured, [read_yaml(PARAMS_FILE), *settings_left_out])
    left_out = [replace(one, settings=flat) for one, flat in zip(left_out, texts, strict=True)]
    still_missing = [one for name in wholes for one in unfinished(name, known)]
    return Selection(measured, left_out, still_missing, notes, home)


def select(
    names: Sequence[str], policy: str | None, score: Score, tasks: Sequence[str] = (), table: str | None = None
) -> list[EvaluatedPolicy]:
    """Return the evaluated policies of `selected`."""
    return selected(names, policy, score, tasks, table).policies


def _of_table(runs: Mapping[str, Evaluated], table: str | None) -> list[str]:
    """Return the labels that are evaluated on a table. A line lists the other tables."""
    tables = list(dict.fromkeys(run.table for run in runs.values()))
    if table is not None and table not in tables:
        fix = did_you_mean(table, tables) or f"There are {', '.join(tables)}"
        raise PipelineError(what=f"no evaluation on '{table}'", where="compare --table", fix=fix)
    chosen = table if table is not None else (tables or [""])[0]
    if others := [name for name in tables if name != chosen and table is None]:
        print(f"evaluated on {chosen}; also on {', '.join(others)} (--table NAME)", file=sys.stderr)
    return [label for label, run in runs.items() if run.table == chosen]


def _measured_by(label: str, stage: str, touched: Collection[str]) -> list[str]:
    """Return the touched sections that say how a policy is measured."""
    if stage.startswith("evaluate_runs@"):
        return [f"evaluate.runs.{label}"]
    return [key for key in touched if key.startswith(("evaluate.settings", f"evaluate.policies.{label}"))]


def _label(name: str, labels: Mapping[str, str]) -> str:
    """Return the label of a policy that is given by its model, e.g. grpo for online/grpo."""
    return next((label for label, model in labels.items() if model == name), name) if name not in labels else name


def _experiments_named(name: str, known: Sequence[Experiment], runs_here: Sequence[str]) -> list[Experiment]:
    matches = named(name, known) or commit(name)
    if not matches:
        names = dict.fromkeys(part for one in known for part in (one.name.partition("-")[0], one.name))
        alike = [*runs_here, *names]
        fix = f"`dvc exp list` names the experiments. {did_you_mean(name, alike)}".strip()
        raise PipelineError(what=f"no run, experiment, sweep or commit '{name}'", where="compare", fix=fix)
    return matches


def _partner(others: Sequence[str], named_by: Mapping[str, Sequence[Experiment]]) -> str | None:
    """Return what the only experiment or commit is compared with: HEAD, or for HEAD itself the workspace."""
    chosen = [one for several in named_by.values() for one in several]
    head = commit(HEAD)
    if not others or len(chosen) > 1 or not head:
        return None
    return WORKSPACE if chosen and chosen[0].commit == head[0].commit else HEAD


def _with_head(
    head: Experiment, name: str, notes: list[str], policy: str, score: Score, tasks: Sequence[str]
) -> list[EvaluatedPolicy]:
    """Return HEAD's policy to compare the only name with, and add a note. Without results of HEAD, the note says so."""
    try:
        policy_at_head = _read(head, policy, score, tasks)[0]
    except DataError as error:
        notes.append(f"{name} is not compared with HEAD: {error.what}")
        return []
    notes.append(f"{name} is compared with HEAD, because it is the only name")
    return [policy_at_head]


def _policy(flat_settings: Sequence[Flat], here: Sequence[str], settings: Settings) -> str:
    """Return the policy to compare: the one given with the experiments, or the last one downstream that differs."""
    labels = {label: run.model for label, run in evaluated(settings).items()}
    if len(set(here)) == 1:
        return here[0]
    if len(labels) == 1:
        return next(iter(labels))
    if len(flat_settings) == 1:
        fix = f"Choose one with --policy: {', '.join(labels)}"
        raise PipelineError(what="the experiment has several policies", where="compare", fix=fix)
    keys = differing(flat_settings) or [
        key for key in flat_settings[0] if len({flat.get(key) for flat in flat_settings}) > 1
    ]
    touched = {".".join(key.split(".")[:3]) for key in keys}
    behind = {
        label: [
            *sections_behind(settings, [section_of(settings, run.model)]),
            *_measured_by(label, run.stage, touched),
        ]
        for label, run in evaluated(settings).items()
    }
    runs = {section for sections in behind.values() for section in sections}
    of_all = not touched <= runs  # as evaluate.settings, or a seed for all runs
    differ = [label for label in labels if of_all or touched.intersection(behind[label])]
    differ = differ if keys else list(labels)  # of equal settings the last policy
    chosen = max(differ, key=lambda label: len(behind[label]))
    if not keys:
        print(f"compared: {chosen}, because all settings are equal (--policy NAME)", file=sys.stderr)
        return chosen
    if rest := [label for label in differ if label != chosen]:
        print(f"compared: {chosen}; also different: {', '.join(rest)} (--policy NAME)", file=sys.stderr)
    return chosen


def _here(name: str, policy: str, score: Score, tasks: Sequence[str], runs: Mapping[str, Evaluated]) -> EvaluatedPolicy:
    """Return a policy of the workspace."""
    policy_here = read_evaluated(Path(), name, policy, score, tasks)
    if policy not in runs or not Path(LOCK).is_file():
        return policy_here
    (known,) = of_workspace([runs[policy].stage])
    return replace(policy_here, code=known.code, unverified=known.unverified)


def _those_that_belong(
    experiments: Iterable[Experiment],
    sweeps: Mapping[str, Sequence[Experiment]],
    policy: str,
    score: Score,
    tasks: Sequence[str],
) -> tuple[list[EvaluatedPolicy], list[LeftOut], list[str]]:
    """Return the policy of each experiment. If results in a sweep are not its own, leave it out with a line.

    Experiments of a sweep that ran at another commit count if they mean the same as the others; notes say so.
    """
    of_sweep = {one.name: one for policies in sweeps.values() for one in policies}
    known, errors = dict[str, Belonging | str](), dict[str, DataError]()
    policies = dict[str, EvaluatedPolicy]()
    for experiment in experiments:
        try:
            policies[experiment.name], known[experiment.name] = _read(experiment, policy, score, tasks)
        except DataError as error:
            if experiment.name not in of_sweep:
                raise
            known[experiment.name], errors[experiment.name] = error.what, error
    if errors and not policies:
        raise next(iter(errors.values()))
    notes, counted = list[str](), set(known) - set(of_sweep)
    for name, whole in sweeps.items():
        names, more = sorted_out(name, whole, known)
        counted |= set(names)
        notes += [*more, *since(name, whole, known)]
    unlike_ones = {name: error for name, error in errors.items() if name in counted}
    for unlike in unlike_ones.values():
        print(f"left out: {unlike}", file=sys.stderr)
    left_out = [LeftOut(name, settings_of(of_sweep[name]), error.what) for name, error in unlike_ones.items()]
    return [one for name, one in policies.items() if name in counted], left_out, notes


def _read(experiment: Experiment, policy: str, score: Score, tasks: Sequence[str]) -> tuple[EvaluatedPolicy, Belonging]:
    known = of_experiment(experiment, policy)
    with tempfile.TemporaryDirectory() as folder, without_folder(folder):
        policy_read = read_evaluated(fetch(experiment, policy, Path(folder)), experiment.name, policy, score, tasks)
    return replace(policy_read, weights=experiment.weights, code=known.code, unverified=known.unverified), known
