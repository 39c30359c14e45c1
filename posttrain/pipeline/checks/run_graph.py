"""Check how runs refer to each other: unknown inputs, cycles, models without evaluation, leftovers of removed runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from posttrain.errors import PosttrainError
from posttrain.pipeline.lock.orphaned_outputs import Leftovers
from posttrain.pipeline.params.slots import slots
from posttrain.pipeline.params.stage_table import STAGES, Settings, evaluated, group_of, models_of_set
from posttrain.pipeline.runs.samples import DEFAULT_TABLES, SAMPLED
from posttrain.pipeline.tables.sources import USER_KINDS
from posttrain.pipeline.workspace import model_path, table_path
from posttrain.rewards.catalog import learned
from posttrain.settings.params import did_you_mean
from posttrain.settings.plain import NONE
from posttrain.tasks.task import load_task

CLEAN = "`posttrain clean`"
LISTED = 3
SAMPLERS = ("online", "distill")
"""Stages that store their policy's samples."""


class RunOutputs:
    """The tables and models that runs in params.yaml make, to find slots that name anything else."""

    def __init__(self, settings: Settings, left: Leftovers, errors: list[str], root: Path = Path()) -> None:
        self.settings, self.models = settings, dict[str, str]()
        self.scorers = _base_scorers(settings, root)
        self.tables: dict[str, str] = {}
        self.rollouts: dict[str, str] = {}
        self.left = {path for paths in left.values() for path in paths}
        folders: dict[str, str] = {}
        for stage in STAGES:
            for name, run in group_of(settings, stage.group).items():
                where, output = f"{stage.group}.{name}", stage.output(name)
                folder = {"model": "models", "tables": "data", "rollouts": "models"}.get(stage.makes, stage.makes)
                first = folders.setdefault(f"{folder}/{output}", where)
                if first != where:
                    errors.append(f"{where} and {first} would both make {folder}/{output}. Rename one of them.")
                elif stage.makes == "model":
                    self.models[output] = where
                    if stage.name in SAMPLERS:
                        self.rollouts[output] = where
                elif stage.makes == "rollouts":
                    self.rollouts[output] = where
                elif stage.makes == "tables":
                    self.tables |= dict.fromkeys(_tables(stage.group, name, run), where)

    def unknown(self, where: str, params: Any) -> Iterator[str]:
        """Yield a line for each slot of the run that names an output of no run."""
        named = slots(type(params))
        for slot, extra in named.items():
            name = getattr(params, slot)
            if name == NONE and extra["optional"]:
                continue
            if extra["slot"] == "rollouts":
                if name in self.rollouts:
                    continue
                fix = did_you_mean(name, list(self.rollouts))
                yield f"{where}.{slot} = '{name}': no run samples these rollouts. {fix or 'Add a run of online.runs'}"
                continue
            kind = {key: extra[key] for key in ("kinds", "scores", "sets") if key in extra}
            yield from self.fault(f"{where}.{slot}", name, **kind)
        if named.get("first", {}).get("sets") and len({*self._kinds(params.first), *self._kinds(params.second)}) > 1:
            yield f"{where} has a reward model and a model that writes text. Put models of one kind into a set"
        if named.get("first", {}).get("sets"):
            names = [*self._names(params.first), *self._names(params.second)]
            for name in sorted({name for name in names if names.count(name) > 1}):
                yield f"{where} has two models of the name '{name}'. Rename the run that makes one of them"
        if "teacher" in named:
            models = [] if params.teacher == NONE else self._names(params.teacher)
            yield from params.teachers_fault(models, where)
        if "reward_model" in named and params.reward_model != NONE:
            yield from self._unknown_parts(where, params)

    def _unknown_parts(self, where: str, params: Any) -> Iterator[str]:
        """Yield a line for each reward that names a model outside the run's set of reward models."""
        models = self._names(params.reward_model)
        parts = models if len(models) > 1 else [None]
        for name, options in learned(params.reward).items():
            if options.part not in parts:
                known = f"has {', '.join(map(str, parts))}" if len(models) > 1 else "is one model"
                fix = f"Write part: {parts[0]}" if len(models) > 1 else "Remove part"
                yield f"{where}.reward.{name}: part is {options.part}, and {params.reward_model} {known}. {fix}"

    def _names(self, model: str) -> list[str]:
        """Return the names of the models in a set."""
        return [member.rpartition("/")[2] for member in models_of_set(self.settings, model)]

    def _kinds(self, model: str) -> set[bool]:
        """Tell whether the models of a set, or the one model, are reward models, as far as this is known."""
        scoring = (self.scorers.get(one, one.startswith("reward/")) for one in models_of_set(self.settings, model))
        return {kind for kind in scoring if kind is not None}

    def _misfit(self, model: str, *, scores: bool | None, sets: bool) -> str | None:
        """Return why a slot cannot use a model; None if it can."""
        kinds = self._kinds(model)
        if scores is not None and (not scores) in kinds:
            return "it gives no scores" if scores else "a reward model generates no text"
        if not scores and not sets and len(self._names(model)) > 1:
            return "it is a set of models, and one is needed"
        return None

    def fault(
        self,
        where: str,
        name: str,
        kinds: list[str] | None = None,
        *,
        scores: bool | None = False,
        sets: bool = False,
    ) -> Iterator[str]:
        """Yield the faults of a name. `kinds`: allowed kinds of tables; None: it must be a model.

        `scores`: it must be a reward model; None: it may be one. `sets`: a set of language models is allowed.
        """
        known = self.models if kinds is None else self.tables
        itself = known.get(name) == where.rpartition(".")[0]
        if name in known and not itself and self._fits(name, kinds, scores=scores, sets=sets):
            return
        noun = "table" if kinds is not None else "reward model" if scores else "model"
        fitting = [one for one in known if self._fits(one, kinds, scores=scores, sets=sets)]
        wanted = f"{' or '.join(kinds)} {noun}" if kinds else noun
        hint = did_you_mean(name, fitting) or f"Add a run that makes a {wanted}"
        if name not in known:
            removed = self.left & {str(model_path(name)), str(table_path(name).parent)}
            reason = "the run that made it was removed or renamed" if removed else f"no run makes this {noun}"
            yield f"{where} = '{name}': {reason}. {hint}"
        elif itself:
            yield f"{where} = '{name}': a run cannot start from itself. Name another {noun}"
        else:
            yield f"{where} = '{name}': {self._misfit(name, scores=scores, sets=sets)}. {hint}"

    def _fits(self, name: str, kinds: list[str] | None, *, scores: bool | None, sets: bool) -> bool:
        """Tell whether a slot for these kinds of tables, or for a model, can use this one."""
        if kinds is not None:
            return name.partition("/")[2] in kinds
        return self._misfit(name, scores=scores, sets=sets) is None

    def cycles(self, typed: Mapping[str, Any]) -> Iterator[str]:
        """Yield a line for the first cycle of runs that depend on each other."""
        makers = {**self.rollouts, **self.models, **self.tables}
        needs = {
            where: [
                maker
                for slot in slots(type(params))
                if (maker := makers.get(getattr(params, slot))) not in (None, where)
            ]
            for where, params in typed.items()
        }
        done: set[str] = set()

        def walk(where: str, path: tuple[str, ...]) -> Iterator[str]:
            if where in path:
                cycle = [*path[path.index(where) :], where]
                yield f"cycle: {' needs '.join(cycle)}. Give one of them another input"
            elif where not in done:
                done.add(where)
                for other in needs.get(where, ()):
                    yield from walk(other, (*path, where))

        for where in typed:
            if ring := next(walk(where, ()), None):
                yield ring
                return


def _base_scorers(settings: Settings, root: Path) -> dict[str, bool | None]:
    """Tell whether each model of `base` is a reward model, by its config.json; None if it is not on disk yet."""
    scorers: dict[str, bool | None] = dict.fromkeys((f"base/{name}" for name in group_of(settings, "base.hub")), None)
    for name, run in group_of(settings, "base.folders").items():
        try:
            config = json.loads((root / str(run["path"]) / "config.json").read_bytes())
            scorers[f"base/{name}"] = str(config["architectures"][0]).endswith("ForSequenceClassification")
        except (OSError, ValueError, LookupError, TypeError):  # reported where the model is taken in
            scorers[f"base/{name}"] = None
    return scorers


def _tables(group: str, name: str, run: Any) -> list[str]:
    """Return the tables that a run of `data` makes, in the notation of slots."""
    settings = run if isinstance(run, Mapping) else {}
    kinds: list[str]
    if group == "data.tasks":
        try:
            generator = load_task(str(settings.get("task"))).generator
        except PosttrainError:  # reported where the run is loaded
            generator = None
        kinds = list(generator.kinds) if generator else []
    elif group == "data.samples":
        wanted = settings.get("tables", DEFAULT_TABLES)
        kinds = [kind for kind in SAMPLED if kind in wanted] if isinstance(wanted, list | tuple) else []
    else:
        kinds = [kind for kind in USER_KINDS if settings.get(kind)]
        if "pairs" in kinds and "feedback" not in kinds:
            kinds.append("feedback")
        if not kinds and "data" in settings:  # a table of the kind that `data` is
            kinds = [str(settings.get("data")).partition("/")[2]]
    return [f"{name}/{kind}" for kind in kinds]


def _helpers(settings: Settings) -> set[str]:
    """Return the models that runs use as reward model or teacher."""
    runs = [run for stage in STAGES for run in group_of(settings, stage.group).values() if isinstance(run, Mapping)]
    runs.append(group_of(settings, "evaluate.settings"))
    slots_of_helpers = ("reward_model", "first", "second", "teacher")
    return {str(run[slot]) for run in runs for slot in slots_of_helpers if slot in run}


def notes(settings: Settings, left: Leftovers) -> list[str]:
    """Return hints about possible slips: models without evaluation, and leftovers of removed runs."""
    measured = {run.model for run in evaluated(settings).values()} | _helpers(settings)
    models = [
        stage.output(name)
        for stage in STAGES
        if stage.makes == "model" and not stage.group.startswith("reward.")
        for name in group_of(settings, stage.group)
    ]
    missing, runs = [model for model in models if model not in measured], list(left)
    hints = []
    if missing:
        hints.append(f"note: not evaluated: {', '.join(missing)}. Add LABEL: MODEL to evaluate.policies")
    if runs:
        some = ", ".join(runs[:LISTED]) + (", ..." if len(runs) > LISTED else "")
        count = f"{len(runs)} removed run{'s' * (len(runs) > 1)}"
        hints.append(f"note: {count} left outputs or entries in dvc.lock ({some}). {CLEAN} removes them")
    return hints
