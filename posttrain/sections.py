"""What types each run of params.yaml, and the check of the whole file before any work begins."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from posttrain.choices import OneOf, choices_of
from posttrain.errors import ParamsError, PosttrainError
from posttrain.evaluate.settings import EvaluateParams, load_policies
from posttrain.leftovers import leftovers
from posttrain.online.runs import DISTILL, ONLINE
from posttrain.params import GROUPS, PARAMS_FILE, did_you_mean, load, read
from posttrain.rewards.catalog import REWARDS
from posttrain.sampling.annotator import SamplesRun
from posttrain.slots import NONE, PART, slots
from posttrain.stage_table import STAGES, Settings, group_of
from posttrain.tables.sources import GIVEN, FilesRun
from posttrain.tables.sources import HubRun as HubTables
from posttrain.tasks.task import TASKS, load_task, task_run
from posttrain.train.run_config import Algorithm, load_run
from stages.base_folders import FolderRun
from stages.base_hub import HubRun as HubModel
from stages.base_scratch import ScratchRun
from stages.preference import PREFERENCE, PreferenceRun, needed_kind
from stages.reward import RewardRun
from stages.sft import SftRun

MODELS: Mapping[str, type[BaseModel]] = {
    "data.files": FilesRun,
    "data.hub": HubTables,
    "data.samples": SamplesRun,
    "base.scratch": ScratchRun,
    "base.folders": FolderRun,
    "base.hub": HubModel,
    "sft.runs": SftRun,
    "reward.runs": RewardRun,
}
"""Groups whose runs have one type."""
ALGORITHMS: Mapping[str, Mapping[str, Algorithm]] = {
    "preference.runs": PREFERENCE,
    "online.runs": ONLINE,
    "distill.runs": DISTILL,
}
"""Groups whose runs name an algorithm, which decides their type."""
REWARD_OPTIONS = "options of the reward"
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def check_params(root: Path = Path()) -> str:
    """Check params.yaml as a whole: every run, and what it names; `root` is where paths of your own begin."""
    settings = read()
    errors: list[str] = []
    typed: dict[str, Any] = {}
    for stage in STAGES:
        if stage.makes == "results":
            continue
        for name in group_of(settings, stage.group):
            where = f"{stage.group}.{name}"
            with _collected(errors):
                _check_name(name, stage.group)
                typed[where] = _load(stage.group, str(name))
    made = _Made(settings, errors)
    for where, params in typed.items():
        errors += made.unknown(where, params)
        errors += _missing_inputs(where, params, root)
        with _collected(errors):
            if isinstance(params, PreferenceRun):
                needed_kind(params, where)
    with _collected(errors):
        _check_evaluation(settings, made, errors)
    errors += _cycles(typed, made)
    if errors:
        found = list(dict.fromkeys(errors))
        raise ParamsError(what="\n  ".join(["", *found]).lstrip(), where=PARAMS_FILE, fix=_count(len(found)))
    return "\n".join([f"{PARAMS_FILE}: {len(typed)} runs are right", *_notes(settings)])


def _count(number: int) -> str:
    return "Fix it; nothing was run" if number == 1 else f"\nFix these {number}; nothing was run"


@contextmanager
def _collected(errors: list[str]) -> Iterator[None]:
    """Collect an error of ours as one line instead of raising it."""
    try:
        yield
    except PosttrainError as error:
        errors.append(str(error).removeprefix(f"{PARAMS_FILE}: ").replace(f" ({PARAMS_FILE})", "", 1))


def _check_name(name: object, group: str) -> None:
    if not isinstance(name, str) or not re.fullmatch(PART, name) or name == NONE:
        fix = "Use up to 100 letters, digits, '-' and '_', beginning with a letter or digit"
        raise ParamsError(what=f"{group}: {name!r:.100} cannot name a run", where=PARAMS_FILE, fix=fix)


def _load(group: str, name: str) -> Any:
    where = f"{group}.{name}"
    if group == "data.tasks":
        return task_run(name)[2]
    return load_run(where, ALGORITHMS[group]) if group in ALGORITHMS else load(MODELS[group], where)


class _Made:
    """The tables and models that the runs of params.yaml make, and which of a run's slots name none of them."""

    def __init__(self, settings: Settings, errors: list[str]) -> None:
        self.models: dict[str, str] = {}
        self.tables: dict[str, str] = {}
        folders: dict[str, str] = {}
        for stage in STAGES:
            for name, run in group_of(settings, stage.group).items():
                where, output = f"{stage.group}.{name}", stage.output(name)
                folder = {"model": "models", "tables": "data", "results": "results"}[stage.makes]
                first = folders.setdefault(f"{folder}/{output}", where)
                if first != where:
                    errors.append(f"{where} and {first} would both make {folder}/{output}. Rename one of them.")
                elif stage.makes == "model":
                    self.models[output] = where
                else:
                    self.tables |= dict.fromkeys(_tables(stage.group, name, run), where)

    def unknown(self, where: str, params: Any) -> Iterator[str]:
        """A line for each slot of the run that names what no run makes."""
        for slot, extra in slots(type(params)).items():
            name = getattr(params, slot)
            if name == NONE and extra["optional"]:
                continue
            yield from self.fault(f"{where}.{slot}", name, extra.get("kinds"), scores=slot == "reward_model")

    def fault(self, where: str, name: str, kinds: list[str] | None = None, *, scores: bool = False) -> Iterator[str]:
        """What is wrong with one name, if anything is; `kinds` are those of tables, None for a model."""
        if kinds is None:
            known, noun = self.models, "reward model" if scores else "model"
            fitting = [one for one in known if one.startswith("base/") or one.startswith("reward/") == scores]
        else:
            known, noun = self.tables, "table"
            fitting = [one for one in known if one.partition("/")[2] in kinds]
        wanted = f"{' or '.join(kinds)} {noun}" if kinds else noun
        hint = did_you_mean(name, fitting) or f"Add a run that makes a {wanted}"
        if name not in known:
            yield f"{where} = '{name}': no run makes this {noun}. {hint}"
        elif known[name] == where.rpartition(".")[0]:
            yield f"{where} = '{name}': a run cannot start from itself. Name another {noun}"
        elif name not in fitting:
            reason = "it writes text, and scores none" if scores else "a reward model scores text, and writes none"
            yield f"{where} = '{name}': {reason}. {hint}"


def _tables(group: str, name: str, run: Any) -> list[str]:
    """The tables that a run of `data` makes, as slots name them."""
    settings = run if isinstance(run, Mapping) else {}
    if group == "data.tasks":
        generator = None
        with _collected([]):  # reported where the run is loaded
            generator = load_task(str(settings.get("task"))).generator
        found = list(generator.kinds) if generator else []
    elif group == "data.samples":
        found = ["pairs", "feedback"]
    else:
        found = [kind for kind in GIVEN if settings.get(kind)]
    if "pairs" in found and "feedback" not in found:
        found.append("feedback")
    return [f"{name}/{kind}" for kind in found]


def _missing_inputs(where: str, params: Any, root: Path) -> Iterator[str]:
    """A line for each file or folder of the user's own that is not there, and for names that no Hub has."""
    if isinstance(params, FilesRun | FolderRun):
        folder = root / params.path
        if not folder.is_dir():
            what = "is a file, not a folder" if folder.exists() else "folder not found"
            yield f"{where}.path = '{params.path}': {what}."
        elif isinstance(params, FolderRun) and not (folder / "config.json").is_file():
            yield f"{where}.path = '{params.path}': it has no config.json. Give the folder of a model."
        elif isinstance(params, FilesRun):
            for kind in GIVEN:
                source = getattr(params, kind)
                if source is not None and not (folder / source.path).exists():
                    names = sorted(file.name for file in folder.iterdir())
                    hint = did_you_mean(source.path, names)
                    yield f"{where}.{kind}: {folder / source.path} not found. {hint}"
    if isinstance(params, HubModel) and not HUB_NAME.fullmatch(params.name):
        yield f"{where}.name = '{params.name}': not a name of the Hub. Write ORGANISATION/NAME."
    if isinstance(params, HubTables):
        for kind in GIVEN:
            source = getattr(params, kind)
            if source is not None and not HUB_NAME.fullmatch(source.name):
                yield f"{where}.{kind}.name = '{source.name}': not a name of the Hub. Write ORGANISATION/NAME."


def _check_evaluation(settings: Settings, made: _Made, errors: list[str]) -> None:
    if not group_of(settings, "evaluate.policies"):
        return
    for label, model in load_policies().items():
        errors += made.fault(f"evaluate.policies.{label}", model)
    errors += made.unknown("evaluate.settings", load(EvaluateParams, "evaluate.settings"))


def _cycles(typed: Mapping[str, Any], made: _Made) -> Iterator[str]:
    """A line for the first circle of runs that need each other."""
    makers = {**made.models, **made.tables}
    needs = {
        where: [
            maker for slot in slots(type(params)) if (maker := makers.get(getattr(params, slot))) not in (None, where)
        ]
        for where, params in typed.items()
    }
    done: set[str] = set()

    def walk(where: str, path: tuple[str, ...]) -> Iterator[str]:
        if where in path:
            circle = [*path[path.index(where) :], where]
            yield f"runs need each other in a circle: {' <- '.join(circle)}. Break it at one of them"
        elif where not in done:
            done.add(where)
            for other in needs.get(where, ()):
                yield from walk(other, (*path, where))

    for where in typed:
        if found := next(walk(where, ()), None):
            yield found
            return


def _notes(settings: Settings) -> list[str]:
    """What is right and may still be a slip: models that nobody measures, and what removed runs left."""
    used = set(group_of(settings, "evaluate.policies").values())
    for stage in STAGES:
        for run in group_of(settings, stage.group).values():
            used |= {str(value) for value in (run.values() if isinstance(run, Mapping) else ())}
    made = [
        stage.output(name)
        for stage in STAGES
        if stage.makes == "model" and stage.name != "reward"
        for name in group_of(settings, stage.group)
        if stage.output(name) not in used
    ]
    left = leftovers(settings)
    return [
        *(f"note: {name} is not evaluated; add it to evaluate.policies to measure it" for name in made),
        *(
            f"note: {name} is left over from an earlier params.yaml; `python -m posttrain clean` removes it"
            for name in left
        ),
    ]


def describe_params(section: str | None) -> str:
    """Every parameter of one section or of all, with type, default and meaning."""
    if section is not None and section not in GROUPS:
        raise ParamsError(what=f"no section '{section}'", where=PARAMS_FILE, fix=did_you_mean(section, list(GROUPS)))
    blocks = [
        [title, *_lines(model, "  ")]
        for title, model in _described()
        if section in (None, title.partition(".")[0])
        or (title.startswith(REWARD_OPTIONS) and section in ("data", "online", "distill", "evaluate"))
    ]
    return "\n\n".join("\n".join(lines) for lines in blocks)


def _described() -> Iterator[tuple[str, type[BaseModel]]]:
    for name in TASKS:
        if generator := load_task(name).generator:
            yield f"data.tasks.NAME with task {name}", generator.params
    for group, model in MODELS.items():
        yield f"{group}.NAME", model
    for group, algorithms in ALGORITHMS.items():
        models: dict[type[BaseModel], list[str]] = {}
        for algorithm, of in algorithms.items():
            models.setdefault(of.model, []).append(algorithm)
        for model, named in models.items():
            yield f"{group}.NAME with algorithm {', '.join(named)}", model
    yield "evaluate.settings", EvaluateParams
    for name, reward in REWARDS.items():
        if reward.options.model_fields:
            yield f"{REWARD_OPTIONS} {name}", reward.options


def _lines(model: type[BaseModel], prefix: str) -> Iterator[str]:
    choices = dict(choices_of(model))
    for name, field in model.model_fields.items():
        if name in choices:
            yield from _choice_lines(f"{prefix}{name}", choices[name], field.description or "")
            continue
        inner = None if get_origin(field.annotation) is dict else _model_in(field.annotation)
        if inner is not None:
            yield from _lines(inner, f"{prefix}{name}.")
            continue
        default = field.get_default(call_default_factory=True)
        shown = "required" if default is PydanticUndefined else f"= {default!r}"
        yield f"{prefix}{name}: {_type(field.annotation)} {shown}  {field.description or ''}".rstrip()


def _choice_lines(path: str, choice: OneOf[Any], description: str) -> Iterator[str]:
    """A choice with its types, and the options of each."""
    own = " or MODULE:NAME" if choice.own else ""
    yield f"{path}: {'|'.join(choice.table)}{own} = {choice.default!r}  {description}; a name, or {{type: NAME, ...}}"
    for name, entry in choice.table.items():
        options = [line for line in _lines(entry.options, f"{path}.") if not line.startswith(f"{path}.type:")]
        yield f"  {path}: {name}  {entry.formula}"
        yield from (f"    {line}" for line in options)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    candidates = [annotation, *get_args(annotation)]
    return next((one for one in candidates if isinstance(one, type) and issubclass(one, BaseModel)), None)


def _type(annotation: Any) -> str:
    values = get_args(annotation)
    if get_origin(annotation) is dict:
        return "mapping"
    if values and all(isinstance(value, str) for value in values):
        return "|".join(values)
    return (
        annotation.__name__ if isinstance(annotation, type) and not values else str(annotation).replace("typing.", "")
    )
