"""Check the whole params.yaml before any work begins, and describe its parameters."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from posttrain.errors import ParamsError, PosttrainError, excerpt
from posttrain.files import is_outside
from posttrain.models.files.adapter_files import is_adapter
from posttrain.models.files.tokenizer import TemplateParams, template_fault, written_template
from posttrain.pipeline import EXPLAINED
from posttrain.pipeline.checks.run_graph import RunOutputs, notes
from posttrain.pipeline.lineage.user_text import push_notes
from posttrain.pipeline.lock.check_inputs import REMOVE, unreadable
from posttrain.pipeline.lock.code_manifest import Library
from posttrain.pipeline.lock.orphaned_outputs import Leftovers, leftovers
from posttrain.pipeline.lock.repair_dvc import LOCK, in_conflict
from posttrain.pipeline.outside.evaluators import EVALUATORS
from posttrain.pipeline.outside.evaluators import GROUP as EVALUATED
from posttrain.pipeline.params.params_file import load, read
from posttrain.pipeline.params.seeds import SEED, SEED_MEANING
from posttrain.pipeline.params.slots import PART
from posttrain.pipeline.params.stage_table import STAGES, Settings, group_of, policies
from posttrain.pipeline.processes.notes import process_notes
from posttrain.pipeline.processes.own_command import OwnCommand
from posttrain.pipeline.runs.base import FolderRun
from posttrain.pipeline.runs.base import HubRun as HubModel
from posttrain.pipeline.runs.evaluation import EvaluateParams
from posttrain.pipeline.runs.offline import OfflineRun, need_tokens
from posttrain.pipeline.runs.preference import PreferenceRun, needed_kind
from posttrain.pipeline.runs.ratings import RatingRun, pairs_of
from posttrain.pipeline.runs.regrade import RegradeRun
from posttrain.pipeline.runs.sampled_evaluation import load_policies
from posttrain.pipeline.runs.typed import ALGORITHMS, MODELS, load_settings
from posttrain.pipeline.tables.find_files import matches
from posttrain.pipeline.tables.options import FileTable
from posttrain.pipeline.tables.sources import FilesRun, sources_by_key
from posttrain.pipeline.workspace import PARAMS_FILE
from posttrain.rewards.catalog import REWARDS
from posttrain.rewards.reward import TERM_KEYS, WORKER_KEYS, WeightedReward
from posttrain.settings.choices import OneOf, choices_of
from posttrain.settings.listing import usable
from posttrain.settings.params import did_you_mean
from posttrain.settings.plain import CUSTOM, NONE
from posttrain.settings.user_code import PATH as IMPORT_PATH
from posttrain.tasks.task import TASKS
from posttrain.text.templates import reads

TOP, REWARD_OPTIONS = "the top level", "options of the reward"
BARE = re.compile(rf"(?<![\w.\"':]){IMPORT_PATH.pattern}(?![\w\"'])")
"""An import path without quotes."""
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def check_params(root: Path = Path()) -> str:
    """Check every run in params.yaml and the names it uses. Your own paths are relative to `root`."""
    settings = read()
    _check_dvc_reads_it()
    errors: list[str] = []
    typed: dict[str, Any] = {}
    library = Library()
    for stage in STAGES:
        if stage.shares_settings:
            continue
        for name in group_of(settings, stage.group):
            where = f"{stage.group}.{name}"
            with _collected(errors):
                _check_name(name, stage.group)
                library.check_own(f"{stage.name}@{name}", settings)
                typed[where] = load_settings(stage.group, str(name))
    left: Leftovers = {}
    damage: list[str] = []
    with _collected(errors if in_conflict(LOCK) else damage):  # a damaged one is repaired after the check
        left = leftovers(settings)
    made = RunOutputs(settings, left, errors, root)
    for where, params in typed.items():
        with _collected(errors):
            if isinstance(params, PreferenceRun):
                needed_kind(params, where)
            elif isinstance(params, RatingRun):
                pairs_of(params, where, list(policies(settings)))
            elif isinstance(params, OfflineRun | RegradeRun):
                slot, name = ("data", params.data) if isinstance(params, OfflineRun) else ("rollouts", params.rollouts)
                source = name.replace("external/", "external.rollouts.").replace("/", ".runs.")
                need_tokens(typed.get(source), f"{where}.{slot} = '{name}'")
        named = tuple(error.partition(":")[0] for error in errors)
        errors += (error for error in made.unknown(where, params) if not error.startswith(named))
        errors += _missing_inputs(where, params, root)
    with _collected(errors):
        for label in policies(settings):
            library.check_own(f"evaluate@{label}", settings)
        _check_evaluation(settings, made, errors)
    errors += made.cycles(typed)
    if errors:
        raise _mistakes(list(dict.fromkeys(errors)))
    return "\n".join(
        [
            f"{PARAMS_FILE}: {len(typed)} {'run is' if len(typed) == 1 else 'runs are'} right",
            *notes(settings, left),
            *process_notes(typed),
            *push_notes(settings),
            *damage,
        ]
    )


def _check_dvc_reads_it() -> None:
    """Reject what DVC's reader (libyaml) does not accept: an unquoted `module:name` between braces."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError

    text = Path(PARAMS_FILE).read_text(encoding="utf-8")
    try:
        YAML(typ="safe").load(text)
    except MarkedYAMLError as error:
        number = error.problem_mark.line if error.problem_mark else 0
        line = text.splitlines()[number]
        what = f"line {number + 1}: DVC cannot read it ({error.problem})"
        fix = _without_braces(line) if BARE.search(line) else "Quote the text"
        raise ParamsError(what=what, where=PARAMS_FILE, fix=fix) from error


def _without_braces(line: str) -> str:
    """Return how to write an unquoted `module:name` without braces. Quotes help, but `dvc exp run -S` drops them."""
    from io import StringIO

    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    block = StringIO()
    writer = YAML(typ="safe", pure=True)
    writer.default_flow_style = False
    writer.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    try:
        writer.dump(YAML(typ="safe").load(BARE.sub(r'"\g<0>"', line)), block)
    except YAMLError:  # a part of what several lines hold
        return "Write the name on a separate line, without braces"
    indent = line[: len(line) - len(line.lstrip())]
    lines = "\n".join(indent + splitline for splitline in block.getvalue().splitlines())
    return f"Write it without braces, which `dvc exp run -S` cannot change:\n{lines}"


def _mistakes(mistakes: list[str]) -> ParamsError:
    """Return one error that lists every mistake with its fix."""
    if len(mistakes) == 1:
        return ParamsError(what=mistakes[0], where=PARAMS_FILE, fix="Nothing was run or removed")
    listed = "\n  ".join(mistake.removesuffix(EXPLAINED).rstrip(" .") for mistake in mistakes)
    fix = f"Fix these {len(mistakes)} ({EXPLAINED}):\n  {listed}"
    return ParamsError(what="nothing was run or removed", where=PARAMS_FILE, fix=fix)


@contextmanager
def _collected(errors: list[str]) -> Iterator[None]:
    """Collect a posttrain error as one line instead of raising it."""
    try:
        yield
    except PosttrainError as error:
        errors.append(str(error).removeprefix(f"{PARAMS_FILE}: ").replace(f" ({PARAMS_FILE})", "", 1))


def _check_name(name: object, group: str) -> None:
    if not isinstance(name, str) or not re.fullmatch(PART, name) or name == NONE:
        fix = "Use up to 100 letters, digits, '-' and '_', beginning with a letter or digit"
        raise ParamsError(
            what=f"{group}: {excerpt(name, 100)} is not a valid name for a run", where=PARAMS_FILE, fix=fix
        )


def _missing_inputs(where: str, params: Any, root: Path) -> Iterator[str]:
    """Yield a line for each missing file or folder of the user, and for names that cannot exist on the Hub."""
    if isinstance(params, FilesRun | FolderRun):
        folder = root / params.path
        unreadable_file = unreadable(folder, outside_workspace=params.outside_workspace)
        yield from (f"{where}.path = '{params.path}': {what}. {REMOVE}." for what in unreadable_file)
        if not folder.is_dir():
            what = "is a file, not a folder" if folder.exists() else "folder not found"
            yield f"{where}.path = '{params.path}': {what}."
        elif is_outside(folder, root) and not params.outside_workspace:
            fix = f"Copy it into the workspace, or set {where}.outside_workspace: true"
            yield f"{where}.path = '{params.path}': outside the workspace. {fix}."
        elif isinstance(params, FolderRun) and is_adapter(folder):
            yield f"{where}.path = '{params.path}': an adapter. Merge it into its model with peft (merge_and_unload)."
        elif isinstance(params, FolderRun) and not (folder / "config.json").is_file():
            yield f"{where}.path = '{params.path}': it has no config.json. Give the folder of a model."
        elif isinstance(params, FilesRun):
            yield from _missing_files(where, params, folder)
    if isinstance(params, OwnCommand):
        script, shown = root / params.script, f"{where}.script = '{params.script}'"
        if not script.exists():
            yield f"{shown}: not found. Name the file or the folder that the command runs."
        elif is_outside(script, root):
            yield f"{shown}: outside the workspace. Copy it into the workspace."
        else:
            yield from (f"{shown}: {what}. {REMOVE}." for what in unreadable(script, outside_workspace=False))
    if isinstance(params, TemplateParams) and params.chat_template is not None:
        file = root / params.chat_template
        if not file.is_file() or is_outside(file, root / CUSTOM):
            yield f"{where}.chat_template = '{params.chat_template}': file not found in {CUSTOM}/."
        elif fault := template_fault(file):
            yield f"{where}.chat_template = '{params.chat_template}': it fails on two questions and answers: {fault}."
    if isinstance(params, TemplateParams) and params.template:
        given = Path(params.path) if isinstance(params, FolderRun) else None
        source = written_template(root, given, params.chat_template)
        unread = [name for name in params.template if source is not None and not reads(source, name)]
        yield from (f"{where}.template: the chat template does not read {name}. Remove it." for name in unread)
    if isinstance(params, HubModel) and not HUB_NAME.fullmatch(params.name):
        yield f"{where}.name = '{params.name}': not a name of the Hub. Write ORGANISATION/NAME."


def _missing_files(where: str, params: FilesRun, folder: Path) -> Iterator[str]:
    """Yield a line for each missing source of an entry."""
    for key, (_, source) in sources_by_key(params).items():
        if not isinstance(source, FileTable) or (folder / source.path).exists():
            continue
        if (matched := matches(source.path, folder)) is None:
            hint = did_you_mean(source.path, sorted(file.name for file in folder.iterdir()))
            yield f"{where}.{key}: {folder / source.path} not found. {hint}"
        elif not matched:
            yield f"{where}.{key}: no file matches {folder / source.path}. Fix the pattern, e.g. part-*.jsonl."


def _check_evaluation(settings: Settings, made: RunOutputs, errors: list[str]) -> None:
    if not group_of(settings, "evaluate.policies"):
        return
    for label, model in load_policies().items():
        errors += made.fault(f"evaluate.policies.{label}", model)
    errors += made.unknown("evaluate.settings", load(EvaluateParams, "evaluate.settings"))


def section_texts() -> dict[str, str]:
    """Return every parameter of params.yaml with type, default and description, by title."""
    top = f"  {SEED}  int (default 0): {SEED_MEANING}"
    return {TOP: f"{TOP}\n{top}", **{title: "\n".join([title, *_lines(model, "  ")]) for title, model in _described()}}


def _described() -> Iterator[tuple[str, type[BaseModel]]]:
    for name, task in usable(TASKS):
        if task.generator:
            yield f"data.tasks.NAME with task {name}", task.generator.params
    for group, model in MODELS.items():
        yield f"{group}.NAME", model
    for name, evaluator in usable(EVALUATORS):
        yield f"{EVALUATED}.NAME with evaluator {name}", evaluator.runs
    for group, algorithms in ALGORITHMS.items():
        models: dict[type[BaseModel], list[str]] = {}
        for algorithm, of in algorithms.items():
            models.setdefault(of.model, []).append(algorithm)
        for model, named in models.items():
            yield f"{group}.NAME with algorithm {', '.join(named)}", model
    yield "evaluate.settings", EvaluateParams
    yield f"{REWARD_OPTIONS}: every reward may have these", WeightedReward
    for name, reward in usable(REWARDS):
        if reward.options.model_fields:
            yield f"{REWARD_OPTIONS} {name}", reward.options


def _lines(model: type[BaseModel], prefix: str) -> Iterator[str]:
    choices = dict(choices_of(model))
    for name, field in model.model_fields.items():
        if model is WeightedReward and name not in TERM_KEYS | WORKER_KEYS:
            continue
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
    """Yield a choice with its types and their options."""
    more = " or MODULE:NAME" if choice.own else ""
    yield f"{path}: {'|'.join(choice.table)}{more} = {choice.default!r}  {description}; a name, or {{type: NAME, ...}}"
    for name, entry in usable(choice.table):
        options = [line for line in _lines(entry.options, f"{path}.") if not line.startswith(f"{path}.type:")]
        yield f"  {path}: {name}  {entry.formula}"
        yield from (f"    {line}" for line in options)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)


def _type(annotation: Any) -> str:
    values = get_args(annotation)
    if get_origin(annotation) is dict:
        return "mapping"
    if values and all(isinstance(value, str) for value in values):
        return "|".join(values)
    if get_origin(annotation) in (Union, UnionType):
        return "|".join(_type(value) for value in values)
    if annotation is NoneType:
        return "null"
    return (
        annotation.__name__ if isinstance(annotation, type) and not values else str(annotation).replace("typing.", "")
    )
