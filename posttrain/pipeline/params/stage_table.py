"""The list of all stages: the group in params.yaml with a stage's runs, their settings class, and their outputs.

A new stage needs a file, a stanza in dvc.yaml, and a line here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, Literal, NamedTuple

from posttrain.errors import ParamsError
from posttrain.pipeline.workspace import PARAMS_FILE

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Stage:
    """One kind of stage: a `foreach` of dvc.yaml over the runs of one group of params.yaml."""

    name: str
    group: str
    makes: Literal["tables", "model", "rollouts", "regraded", "results", "ratings"]
    """Tables in data/RUN/, a model in models/SECTION/RUN/ or only rollouts in rollouts/SECTION/RUN/, other files in
    results/RUN/, or metrics/regrade/RUN.* and metrics/ratings/RUN.*."""
    runs: str = ""
    """MODULE:NAME of the settings class, or of a table of algorithms or evaluators; empty: the runs are only names."""
    seeded: bool = False
    """True if its runs use the top-level `seed`. Tasks, filters and evaluation do not, so that their prompts stay
    the same."""
    derives: bool = False
    """True if its tables are made from the table in `data`, and so contain its prompts and texts."""

    sampled_by: str = ""
    """The stage that samples for the same runs before it. It does not depend on the settings in `SCORING`."""

    def settings(self) -> Any:
        """Return the settings class of its runs, or a table of algorithms."""
        module, _, name = self.runs.partition(":")
        return getattr(import_module(module), name)

    @property
    def shares_settings(self) -> bool:
        """True if its runs are only names that share the settings in SECTION.settings, like evaluated policies."""
        return self.makes == "results" and not self.runs

    def output(self, run: str) -> str:
        """Return the name by which other runs refer to a run's output: a folder under data/, models/ or results/."""
        section, _, group = self.group.partition(".")
        if self.makes in ("model", "rollouts", "regraded"):
            return f"{section}/{run}"
        return f"{group}/{run}" if self.is_listed_result else run

    @property
    def is_listed_result(self) -> bool:
        """True if its results are in a separate subfolder such as results/lm_eval/RUN."""
        return self.makes == "results" and self.group not in ("evaluate.policies", "evaluate.runs")


STAGES: Final = (
    Stage("data_tasks", "data.tasks", "tables"),
    Stage("data_files", "data.files", "tables", "posttrain.pipeline.tables.sources:FilesRun"),
    Stage("data_hub", "data.hub", "tables", "posttrain.pipeline.tables.sources:HubRun"),
    Stage("base_scratch", "base.scratch", "model", "posttrain.pipeline.runs.base:ScratchRun", seeded=True),
    Stage("base_folders", "base.folders", "model", "posttrain.pipeline.runs.base:FolderRun"),
    Stage("base_hub", "base.hub", "model", "posttrain.pipeline.runs.base:HubRun"),
    Stage("sft", "sft.runs", "model", "posttrain.pipeline.runs.sft:SftRun", seeded=True),
    Stage(
        "data_samples",
        "data.samples",
        "tables",
        "posttrain.pipeline.runs.samples:SamplesRun",
        seeded=True,
        derives=True,
    ),
    Stage(
        "data_commands",
        "data.commands",
        "tables",
        "posttrain.pipeline.runs.external:CommandRun",
        seeded=True,
        derives=True,
    ),
    Stage(
        "data_filters", "data.filters", "tables", "posttrain.pipeline.runs.scored_filter:ScoredFilterRun", derives=True
    ),
    Stage("reward", "reward.runs", "model", "posttrain.pipeline.runs.reward:RewardRun", seeded=True),
    Stage("reward_sets", "reward.sets", "model", "posttrain.pipeline.runs.reward:SetRun"),
    Stage("preference", "preference.runs", "model", "posttrain.pipeline.runs.preference:PREFERENCE", seeded=True),
    Stage("online", "online.runs", "model", "posttrain.pipeline.runs.online:ONLINE", seeded=True),
    Stage("distill", "distill.runs", "model", "posttrain.pipeline.runs.distill:DISTILL", seeded=True),
    Stage("offline", "offline.runs", "model", "posttrain.pipeline.runs.offline:OFFLINE", seeded=True),
    Stage("external", "external.runs", "model", "posttrain.pipeline.runs.external:ExternalRun", seeded=True),
    Stage(
        "external_rollouts",
        "external.rollouts",
        "rollouts",
        "posttrain.pipeline.runs.external:RolloutsRun",
        seeded=True,
    ),
    Stage("regrade", "regrade.runs", "regraded", "posttrain.pipeline.runs.regrade:RegradeRun"),
    Stage("evaluate", "evaluate.policies", "results", sampled_by="completions"),
    Stage(
        "evaluate_runs",
        "evaluate.runs",
        "results",
        "posttrain.pipeline.runs.evaluation:EvaluateRun",
        sampled_by="completions_runs",
    ),
    Stage("evaluate_ratings", "evaluate.ratings", "ratings", "posttrain.pipeline.runs.ratings:RatingRun"),
    Stage("lm_eval", "evaluate.lm_eval", "results", "posttrain.pipeline.outside.evaluators:EVALUATORS"),
)


SCORING: Final = frozenset({"reward", "metrics", "must_not_fall", "max_failed", "on_failures", "reward_model"})
"""The settings of an evaluation that only its scores depend on. Its completions stay if they change."""


def group_named(kind: str) -> str | None:
    """Return the group in params.yaml with the runs of a stage; None for a stage without a group."""
    return next((stage.group for stage in STAGES if kind in (stage.name, stage.sampled_by)), None)


def stage_names(settings: Settings) -> Iterator[str]:
    """Yield DVC's name of the stages of every run in params.yaml."""
    for stage in STAGES:
        for run in group_of(settings, stage.group):
            yield from ([f"{stage.sampled_by}@{run}"] if stage.sampled_by else [])
            yield f"{stage.name}@{run}"


def groups() -> dict[str, tuple[str, ...]]:
    """Return the sections of params.yaml and their groups. A group maps run names to settings."""
    by_section: dict[str, tuple[str, ...]] = {}
    for stage in STAGES:
        section, _, group = stage.group.partition(".")
        by_section[section] = (*by_section.get(section, ()), *(("settings",) if stage.shares_settings else ()), group)
    return by_section


def group_of(settings: Settings, group: str) -> dict[str, Any]:
    """Return the runs of one group by name; empty if the group is missing."""
    section, _, inner = group.partition(".")
    outer = settings.get(section) or {}
    if not isinstance(outer, Mapping):
        raise ParamsError(
            what=f"{section} is not a mapping", where=PARAMS_FILE, fix=f"Write {section}: {{{inner}: ...}}"
        )
    runs = outer.get(inner) or {}
    if not isinstance(runs, Mapping):
        fix = "Write one key per run"
        raise ParamsError(what=f"{group} is not a mapping of names to settings", where=PARAMS_FILE, fix=fix)
    return dict(runs)


def runs_of(settings: Settings, group: str) -> dict[str, Settings]:
    """Return the runs of a group by name. A run without settings, e.g. while typing, gets an empty mapping."""
    runs = group_of(settings, group)
    if odd := next((name for name, run in runs.items() if not isinstance(run or {}, Mapping)), None):
        fix = f"Write {group}.{odd}: {{KEY: VALUE}}; `posttrain params` explains every key"
        raise ParamsError(what=f"{group}.{odd} is not a mapping", where=PARAMS_FILE, fix=fix)
    return {name: run or {} for name, run in runs.items()}


def model_runs(settings: Settings) -> dict[str, Settings]:
    """Return folder under models/ -> settings of the run that makes it, in the order of the stages."""
    return _runs_that_make(settings, "model")


def curve_runs(settings: Settings) -> dict[str, Settings]:
    """Return curve under plots/ -> settings of the run that makes it: a model, external rollouts, or new scores."""
    return _runs_that_make(settings, "model", "rollouts", "regraded")


def _runs_that_make(settings: Settings, *makes: str) -> dict[str, Settings]:
    return {
        stage.output(name): run
        for stage in STAGES
        if stage.makes in makes
        for name, run in runs_of(settings, stage.group).items()
    }


def models_of_set(settings: Settings, model: str, outer: tuple[str, ...] = ()) -> list[str]:
    """Return the models of a set in `reward.sets`, or just the given model. `outer`: the sets that contain it."""
    sets = group_of(settings, "reward.sets") if model.startswith("reward/") and model not in outer else {}
    members = sets.get(model.removeprefix("reward/"))
    slots = members.values() if isinstance(members, Mapping) else ()
    return [one for slot in slots for one in models_of_set(settings, str(slot), (*outer, model))] or [model]


def policies(settings: Settings) -> dict[str, str]:
    """Return label -> model of the policies that are evaluated with `evaluate.settings`."""
    return group_of(settings, "evaluate.policies")


class Evaluated(NamedTuple):
    """An evaluated policy: its folder under models/, the table, the DVC stage, and the table of rows."""

    model: str
    table: str
    stage: str
    rows: str = "rollouts"


def evaluated(settings: Settings) -> dict[str, Evaluated]:
    """Return folder under results/ -> evaluation, for `evaluate.policies`, `evaluate.runs` and `evaluate.lm_eval`."""
    table = str(group_of(settings, "evaluate.settings").get("data", ""))
    evaluations = {label: Evaluated(model, table, f"evaluate@{label}") for label, model in policies(settings).items()}
    for name, run in runs_of(settings, "evaluate.runs").items():
        evaluations[name] = Evaluated(str(run.get("policy", "")), str(run.get("data", "")), f"evaluate_runs@{name}")
    for name, run in runs_of(settings, "evaluate.lm_eval").items():
        evaluations[f"lm_eval/{name}"] = Evaluated(
            str(run.get("policy", "")), "lm-eval", f"lm_eval@{name}", "documents"
        )
    return evaluations


def section_of(settings: Settings, model: str) -> str:
    """Return the key path of the run that makes a model or a curve: `online/grpo` -> online.runs.grpo."""
    stage, name = _maker(settings, model, ("model", "rollouts", "regraded"))
    return f"{stage.group}.{name}" if stage else model.replace("/", ".")


def model_run(settings: Settings, model: str) -> Settings | None:
    """Return the settings of the run that makes a model; None if no run does. `model_runs` lists all runs."""
    stage, name = _maker(settings, model, ("model",))
    if stage is None:
        return None
    settings_of_run: Settings = group_of(settings, stage.group)[name] or {}
    return settings_of_run


def _maker(settings: Settings, model: str, makes: Collection[str]) -> tuple[Stage | None, str]:
    """Return the stage and the name of the run that makes a model or a curve. No list of all runs is made."""
    section, _, name = model.partition("/")
    for stage in STAGES:
        if (
            stage.makes in makes
            and stage.group.partition(".")[0] == section
            and name in group_of(settings, stage.group)
        ):
            return stage, name
    return None, name


def stage_of(settings: Settings, model: str) -> str:
    """Return the DVC stage that makes a model: `online/grpo` -> online@grpo."""
    group, _, name = section_of(settings, model).rpartition(".")
    return next((f"{stage.name}@{name}" for stage in STAGES if stage.group == group), model)
