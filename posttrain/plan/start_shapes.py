"""What is wrong between a run and its start model or this machine, found by `check` before any run starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from posttrain.errors import ModelError, ParamsError, PosttrainError
from posttrain.launch.hosts import check_hosts
from posttrain.models.adapters import ADAPTERS, INSTALL, LoraOptions, linear_layers
from posttrain.models.routers import find_routers
from posttrain.online.runs import OnlineParams
from posttrain.params import PARAMS_FILE, read
from posttrain.plan.shapes import config_of, shape_of
from posttrain.sampling.engine_process import engine_command
from posttrain.sections import load_settings
from posttrain.stage_table import STAGES, group_of
from posttrain.train.loop import TrainingParams


def check_start_shapes() -> None:
    """Refuse every run whose adapter or router does not fit its start model; params.yaml is right otherwise.

    A start model whose shape is not known yet, as one of the Hub, is left to its run.
    """
    settings, errors, typed = read(), list[str](), dict[str, TrainingParams]()
    for stage in STAGES:
        for name in group_of(settings, stage.group) if stage.makes == "model" else ():
            params = load_settings(stage.group, name)
            if isinstance(params, TrainingParams):
                start = str(getattr(params, "start", stage.output(name)))  # a run of base.scratch makes its own
                shape = partial(_shape, start, settings, scores=stage.name == "reward")
                typed[f"{stage.group}.{name}"] = params
                errors += _faults(f"{stage.group}.{name}", params, start, shape)
    errors += _machine_faults(typed)
    if errors:
        listed = "\n  ".join(errors)
        what = "settings do not fit the start model of a run, or this machine"
        raise ParamsError(what=what, where=PARAMS_FILE, fix=listed)


def _machine_faults(typed: Mapping[str, TrainingParams]) -> list[str]:
    """What this machine lacks or has set wrong, each once with the runs that need it."""
    runs: dict[str, list[str]] = {}
    for where, params in typed.items():
        for check in (_check_engine, lambda params: check_hosts(params.processes)):
            try:
                check(params)
            except PosttrainError as error:
                runs.setdefault(str(error).removeprefix(f"{PARAMS_FILE}: "), []).append(where)
    return [f"{', '.join(where)}: {fault}" for fault, where in runs.items()]


def _check_engine(params: TrainingParams) -> None:
    if isinstance(params, OnlineParams) and params.rollout.engine != "builtin":
        engine_command()


def _shape(model: str, settings: Any, *, scores: bool) -> Any | None:
    """The start model without weights; None where its config is not there yet."""
    try:
        return shape_of(config_of(model, settings), scores=scores)
    except ModelError:
        return None


def _faults(where: str, params: TrainingParams, start: str, shape: Any) -> Iterator[str]:
    """A line for each setting that the start model cannot have."""
    adapter = params.adapter if isinstance(params.adapter, LoraOptions) else None
    if adapter is None and not params.router.balance:
        return
    if adapter is not None and ADAPTERS[adapter.type].module and find_spec("peft") is None:
        yield f"{where}.adapter = {adapter.type}: it needs the package peft. {INSTALL}"
    model = shape()
    if model is None:
        return
    if params.router.balance and not find_routers(model):
        what = f"router.balance = {params.router.balance:g}: {start} has no routers"
        yield f"{where}.{what}. Remove it, or start from a mixture"
    if adapter is not None:
        yield from _adapter_faults(where, adapter, start, model)


def _adapter_faults(where: str, adapter: LoraOptions, start: str, model: Any) -> Iterator[str]:
    try:
        layers = {name: model.get_submodule(name) for name in linear_layers(model, adapter.targets, Path(start))}
    except ModelError as error:
        yield f"{where}: {error}"
        return
    ranks = {name: min(layer.in_features, layer.out_features) for name, layer in layers.items()}
    small = sorted({name.rpartition(".")[2] for name, rank in ranks.items() if rank < adapter.rank})
    if small:
        what = f"{', '.join(small)} of {start} have at most {min(ranks.values())} rows or columns"
        fix = "Use that or less, or name other layers in adapter.targets"
        yield f"{where}.adapter.rank = {adapter.rank}: {what}. {fix}"
