"""Find mismatches between runs and their models or this machine, before any run starts."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from fnmatch import fnmatch
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from posttrain.errors import ModelError, ParamsError, PosttrainError
from posttrain.files import read_finite_json
from posttrain.models.adapters import ADDED, INSTALL, LoraOptions, linear_layers
from posttrain.models.device import DeviceParams, device_name
from posttrain.models.files.adapter_files import config_file
from posttrain.models.files.config_limits import config_faults
from posttrain.models.forward.compiled import compiled_layers
from posttrain.models.forward.routers import find_routers
from posttrain.pipeline.checks.meta_models import config_of, context_length, shape_of, size_of_run, template_of
from posttrain.pipeline.outside.evaluators import GROUP as EVALUATED
from posttrain.pipeline.params.params_file import at, load, read
from posttrain.pipeline.params.stage_table import STAGES, Settings, group_of, model_runs, section_of
from posttrain.pipeline.runs.evaluation import EvaluateParams
from posttrain.pipeline.runs.online import OnlineParams
from posttrain.pipeline.runs.sampled_evaluation import load_policies
from posttrain.pipeline.runs.samples import SamplesRun
from posttrain.pipeline.runs.typed import ALGORITHMS, MODELS, load_settings
from posttrain.pipeline.workspace import PARAMS_FILE
from posttrain.rewards.connection import ConnectionParams
from posttrain.sampling.engines import ENGINES, EngineName
from posttrain.sampling.sampler import SamplingParams
from posttrain.text.templates import reads
from posttrain.train.learning_rates import WARNED, default_rate, explained
from posttrain.train.loop import TrainingParams

TOKENIZERS: Final = ("tokenizer.json", "vocab.*", "*.model", "*.tiktoken")
"""The names of vocabulary files."""


def check_models() -> str:
    """Reject runs whose settings do not fit their models. params.yaml must already be checked.

    If a model's shape is unknown, e.g. on the Hub, its run checks it later. Return notes.
    """
    settings = read()
    errors = [*_config_faults(settings), *_missing_files(settings)]
    devices, engines = dict[str, DeviceParams](), dict[str, EngineName]()
    for stage in STAGES:
        for name in group_of(settings, stage.group) if stage.makes == "model" else ():
            params = load_settings(stage.group, name)
            if isinstance(params, TrainingParams):
                start = str(getattr(params, "start", stage.output(name)))  # a run of base.scratch makes its own
                shape = partial(_shape, start, settings, scores=stage.name == "reward")
                where = f"{stage.group}.{name}"
                devices[where] = params.device
                errors += _faults(where, params, start, shape)
                errors += _template_faults(where, params.template, start, settings)
                if isinstance(params, OnlineParams):
                    engines[where] = params.rollout.engine
                    errors += _length_faults(f"{where}.rollout.sampling", params.rollout.sampling, start, settings)
    for where, model, sampled in _sampled(settings):
        devices[where], engines[where] = sampled.device, sampled.engine
        errors += _length_faults(f"{where}.sampling", sampled.sampling, model, settings)
        errors += _template_faults(where, sampled.template, model, settings)
    errors += _machine_faults(engines)
    errors = list(dict.fromkeys(errors))
    if len(errors) == 1:
        raise ParamsError(what=errors[0], where=PARAMS_FILE, fix="Nothing was run")
    if errors:
        listed = "\n  ".join(errors)
        what = f"{len(errors)} settings do not fit their model or this machine; nothing was run"
        raise ParamsError(what=what, where=PARAMS_FILE, fix=f"Fix these:\n  {listed}")
    return "\n".join([*_without_device(devices), *_unset_keys(settings), *_high_rates(settings)])


def _config_faults(settings: Settings) -> Iterator[str]:
    """Yield a line for each impossible number in the config.json of an own folder."""
    for name, run in group_of(settings, "base.folders").items():
        file = config_file(Path(str(run.get("path", ""))))
        with suppress(OSError, ValueError, AttributeError, RecursionError):  # `load_config` says what is wrong with it
            yield from (f"base.folders.{name}: {file}: {fault}" for fault in config_faults(read_finite_json(file)))


def _missing_files(settings: Settings) -> Iterator[str]:
    """Yield a line for each own folder whose file names show that it lacks a tokenizer or safetensors weights."""
    for name, run in group_of(settings, "base.folders").items():
        folder = Path(str((run or {}).get("path", "")))
        names = {file.name for file in folder.iterdir()} if folder.is_dir() else set[str]()
        if "config.json" not in names:  # an adapter, or not there yet: its run says what is wrong
            continue
        if not any(fnmatch(file, pattern) for file in names for pattern in TOKENIZERS):
            fix = "Save a tokenizer there: AutoTokenizer.from_pretrained(...).save_pretrained(...)"
            yield f"base.folders.{name}: {folder} has no tokenizer ({', '.join(TOKENIZERS)}). {fix}"
        if not any(file.endswith(".safetensors") for file in names):
            old = sorted(file for file in names if file.endswith((".bin", ".pt", ".pth")))
            others = f", only {', '.join(old[:3])}, which may run code" if old else ""
            fix = (
                "Save the model in this format: AutoModelForCausalLM.from_pretrained(...).save_pretrained(..., "
                "safe_serialization=True)"
            )
            yield f"base.folders.{name}: {folder} has no weights in .safetensors{others}. {fix}"


def _high_rates(settings: Settings) -> Iterator[str]:
    """Yield a note for each run of an imported model whose learning rate is far above the default."""
    runs = model_runs(settings)
    for stage in STAGES:
        for name in group_of(settings, stage.group) if stage.makes == "model" else ():
            params = load_settings(stage.group, name)
            if not isinstance(params, TrainingParams) or params.optimizer.lr is None:
                continue
            if not _is_imported(str(getattr(params, "start", "")), settings, runs):
                continue
            try:
                size = size_of_run(stage.group, name, settings)
            except ModelError:  # not there yet
                continue
            adapter = params.adapter.type != "none"
            usual = default_rate(params.rate_kind, size, adapter=adapter).lr
            if params.optimizer.lr > WARNED * usual * (1 + 1e-9):
                told = f"{params.optimizer.lr / usual:.3g} times {explained(params.rate_kind, size, adapter=adapter)}"
                yield f"note: {stage.group}.{name}.optimizer.lr = {params.optimizer.lr:g} is {told}"


def _is_imported(model: str, settings: Settings, runs: Collection[str]) -> bool:
    """Tell whether a model descends from base.folders or base.hub. `runs`: the models that runs make."""
    seen = set[str]()
    while model in runs and model not in seen:
        seen.add(model)
        group, _, run = section_of(settings, model).rpartition(".")
        if group in ("base.folders", "base.hub"):
            return True
        model = str((at(settings, f"{group}.{run}") or {}).get("start", ""))
    return False


def _sampled(settings: Settings) -> Iterator[tuple[str, str, SamplesRun | EvaluateParams]]:
    """Yield the place, model and settings of stages that sample without training."""
    for name in group_of(settings, "data.samples"):
        params = load_settings("data.samples", name)
        yield f"data.samples.{name}", params.policy, params
    for name in group_of(settings, "evaluate.runs"):
        params = load_settings("evaluate.runs", name)
        if params.by == "samples":
            yield f"evaluate.runs.{name}", params.policy, params
    if group_of(settings, "evaluate.policies"):
        evaluated = load(EvaluateParams, "evaluate.settings")
        for model in load_policies().values():
            yield "evaluate.settings", model, evaluated


def _length_faults(where: str, sampling: SamplingParams, model: str, settings: Settings) -> Iterator[str]:
    """Yield a line if completions may be so long that the model has no room for a prompt."""
    try:
        context = context_length(model, settings)
    except ModelError:  # not there yet
        return
    if context is not None and sampling.max_tokens >= context:
        what = f"{model} has a context of {context} tokens, which leaves no room for a prompt"
        yield f"{where}.max_tokens = {sampling.max_tokens}: {what}. Lower it"


def _template_faults(where: str, variables: Mapping[str, Any], model: str, settings: Settings) -> Iterator[str]:
    """Yield a line for each variable that the model's chat template does not read."""
    source = template_of(model, settings) if variables else None
    unread = [name for name in variables if source is not None and not reads(source, name)]
    yield from (f"{where}.template: the chat template of {model} does not read {name}. Remove it" for name in unread)


def _unset_keys(settings: Settings) -> Iterator[str]:
    """Yield a note for each secret variable that is not set here. Workers on other machines may have it."""
    named = [(group, name) for group in (*MODELS, *ALGORITHMS, EVALUATED) for name in group_of(settings, group)]
    typed = {f"{group}.{name}": load_settings(group, name) for group, name in named}
    if group_of(settings, "evaluate.policies"):
        typed["evaluate.settings"] = load(EvaluateParams, "evaluate.settings")
    for where, params in typed.items():
        for key in dict.fromkeys(_keys(params)):
            if not os.environ.get(key):
                yield f"note: {where}: the environment variable {key} is not set here"


def _keys(value: Any) -> Iterator[str]:
    """Yield the names of secret variables in typed settings."""
    if isinstance(value, ConnectionParams) and value.key is not None:
        yield value.key
    parts = (getattr(value, name) for name in type(value).model_fields) if isinstance(value, BaseModel) else ()
    for part in value.values() if isinstance(value, Mapping) else parts:
        yield from _keys(part)


def _without_device(devices: Mapping[str, DeviceParams]) -> Iterator[str]:
    """Yield a note for each run whose device this machine lacks. Workers on other machines may have it."""
    for where, params in devices.items():
        try:
            device_name(params)
        except ModelError:
            yield f"note: {where}: device.device = {params.device}, which this machine does not have"


def _machine_faults(engines: Mapping[str, EngineName]) -> list[str]:
    """Return what this machine lacks or has misconfigured, each once with the runs that need it."""
    runs: dict[str, list[str]] = {}
    for where, engine in engines.items():
        try:
            ENGINES[engine].check()
        except PosttrainError as error:
            runs.setdefault(str(error).removeprefix(f"{PARAMS_FILE}: "), []).append(where)
    return [f"{', '.join(where)}: {fault}" for fault, where in runs.items()]


def _shape(model: str, settings: Any, *, scores: bool) -> Any | None:
    """Return the start model without weights; None if its config does not exist yet."""
    try:
        return shape_of(config_of(model, settings), scores=scores)
    except ModelError:
        return None


def _faults(where: str, params: TrainingParams, start: str, shape: Any) -> Iterator[str]:
    """Yield a line for each setting that the start model does not support."""
    adapter = params.adapter if isinstance(params.adapter, LoraOptions) else None
    routed = {"balance": params.router.balance, "replay": params.router.replays}
    if adapter is None and not any(routed.values()) and not params.compile:
        return
    if adapter is not None and adapter.type in ADDED and find_spec("peft") is None:
        yield f"{where}.adapter = {adapter.type}: it needs the package peft. {INSTALL}"
    model = shape()
    if model is None:
        return
    if any(routed.values()) and not find_routers(model):
        key = next(f"{name} = {json.dumps(value)}" for name, value in routed.items() if value)
        yield f"{where}.router.{key}: {start} has no routers. Remove it, or start from a mixture"
    if adapter is not None:
        yield from _adapter_faults(where, adapter, start, model)
    if params.compile:
        try:
            compiled_layers(model)
        except ModelError as error:
            yield f"{where}.{str(error).removeprefix(f'{PARAMS_FILE}: ')}"


def _adapter_faults(where: str, adapter: LoraOptions, start: str, model: Any) -> Iterator[str]:
    try:
        layers = {name: model.get_submodule(name) for name in linear_layers(model, adapter.targets, Path(start))}
    except ModelError as error:
        yield f"{where}.{error}"
        return
    ranks = {name: min(layer.in_features, layer.out_features) for name, layer in layers.items()}
    small = sorted({name.rpartition(".")[2] for name, rank in ranks.items() if rank < adapter.rank})
    if small:
        sides = sorted({rank for rank in ranks.values() if rank < adapter.rank})
        what = f"{', '.join(small)} of {start} have only {', '.join(map(str, sides))} rows or columns"
        fix = "Lower the rank to this number, or choose other layers in adapter.targets"
        yield f"{where}.adapter.rank = {adapter.rank}: {what}. {fix}"
