"""Models without weights, from a config on disk or from the config of a run's start model."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from posttrain.errors import ModelError
from posttrain.files import read_finite_json
from posttrain.models.decoder.kv_size import kv_sizes
from posttrain.models.files.adapter_files import config_file
from posttrain.models.files.loading import model_class, prepared, quiet, scorer_name
from posttrain.models.files.store import load_config
from posttrain.models.files.text import context_of
from posttrain.models.files.tokenizer import written_template
from posttrain.models.scratch import scratch_config
from posttrain.pipeline.lock.digests import read_lock
from posttrain.pipeline.params.params_file import at, read
from posttrain.pipeline.params.stage_table import STAGES, Settings, model_run, section_of, stage_of
from posttrain.pipeline.runs.typed import load_settings, settings_of
from posttrain.pipeline.workspace import PARAMS_FILE, model_path
from posttrain.settings.plain import NONE
from posttrain.text.bpe import CHAT_TEMPLATE
from posttrain.train.learning_rates import explained, parameters_of

_SIZES: dict[str, Any] = {}
"""Config as JSON -> sizes of keys and values."""


def config_of(model: str, settings: Settings) -> Any:
    """Return the config of a folder under models/, or of its run's start model if the folder does not exist yet."""
    source = config_source(model, settings)
    if isinstance(source, Path):
        return load_config(source)
    return scratch_config(source.shape, source.tokenizer.vocabulary, stop=0, pad=None)


def context_length(model: str, settings: Settings) -> int | None:
    """Return the model's context length. transformers is imported only if config.json omits it."""
    source = config_source(model, settings)
    if not isinstance(source, Path):
        return int(source.shape.context)
    with suppress(OSError, ValueError, AttributeError):  # then `load_config` says what is wrong with it
        config = read_finite_json(config_file(source))
        context = config.get("text_config", config).get("max_position_embeddings")
        if isinstance(context, int) and context > 0:
            return context
    return context_of(load_config(source))


def config_source(model: str, settings: Settings) -> Any:
    """Return the folder with the model's config, or the settings of the base.scratch run that makes it.

    A folder made by a run counts only if dvc.lock has the present settings of that run and its ancestors.
    """
    chain, name = list[str](), model
    while name not in chain and (made := model_run(settings, name)) is not None:
        chain.append(name)
        name = str(made.get("start", made.get("path", name)))
    lock = read_lock(Path())
    current = [_is_current(one, settings, lock) for one in chain]
    for place, one in enumerate(chain):
        if all(current[place:]) and _has_config(model_path(one)):
            return model_path(one)
    if name not in chain:  # the path of base.folders, or a folder that --model names
        for folder in (model_path(name), Path(name)):
            if _has_config(folder):
                return folder
    root = chain[-1] if chain else name
    group, _, run = section_of(settings, root).rpartition(".")
    if group == "base.scratch":
        return settings_of(group, at(settings, f"{group}.{run}"), f"{group}.{run}")
    if not chain:
        raise ModelError(
            what="no config.json there", where=model, fix="Give a folder with a config.json, or a run of params.yaml"
        )
    if _has_config(model_path(root)) and stage_of(settings, root) not in lock:  # its stage was run without DVC
        return model_path(root)
    fix = f"Run `dvc repro {stage_of(settings, root)}` first, or plan with another: --model FOLDER"
    old = "its config.json is of other settings" if _has_config(model_path(root)) else "it has no config.json yet"
    raise ModelError(what=old, where=f"models/{root}", fix=fix)


def _has_config(folder: Path) -> bool:
    return config_file(folder).is_file()


def _is_current(model: str, settings: Settings, lock: Mapping[str, Any]) -> bool:
    """Tell whether dvc.lock has the present settings of the run that makes a model."""
    section = section_of(settings, model)
    recorded = lock.get(stage_of(settings, model), {}).get("params", {}).get(PARAMS_FILE, {})
    return bool(recorded.get(section, NONE) == at(settings, section))


def size_of_run(group: str, run: str, settings: Settings) -> int:
    """Return the number of weights that a run trains. Raise if the model's config does not exist yet."""
    stage = next(stage for stage in STAGES if stage.group == group)
    start = str(getattr(load_settings(group, run), "start", stage.output(run)))  # a run of base.scratch makes its own
    return parameters_of(shape_of(config_of(start, settings), scores=group == "reward.runs"))


def rate_of(group: str, run: str) -> str:
    """Return the default learning rate of a run, as text."""
    params = load_settings(group, run)
    return explained(params.rate_kind, size_of_run(group, run, read()), adapter=params.adapter.type != "none")


def template_of(model: str, settings: Settings) -> str | None:
    """Return the chat template of the model that a run descends from; None if it does not exist yet."""
    name, seen = model, set[str]()
    while name not in seen and (made := model_run(settings, name)) is not None:
        seen.add(name)
        group = section_of(settings, name).rpartition(".")[0]
        if group == "base.scratch":
            return CHAT_TEMPLATE
        if group.startswith("base."):
            folder = Path(made["path"]) if "path" in made else None
            return written_template(Path(), folder, made.get("chat_template"))
        name = str(made.get("start", NONE))
    return None


def shape_of(config: Any, *, scores: bool = False) -> Any:
    """Return the model of a config on the meta device, with a scalar head if it `scores`."""
    config = copy.deepcopy(config)
    if scores:
        config.architectures, config.num_labels = [scorer_name(config.model_type)], 1
    elif not config.architectures:
        config.architectures = [scorer_name(config.model_type).replace("ForSequenceClassification", "ForCausalLM")]
    with quiet(), torch.device("meta"):
        model = prepared(model_class(config)(config))
        if not scores:
            model.kv_sizes = _sizes_of(config.to_json_string(use_diff=False), model)
        return model.to(torch.float32)


def _sizes_of(config: str, model: Any) -> Any:
    """Return the sizes of a model's keys and values. Measuring them takes as long as building the model."""
    if config not in _SIZES:
        _SIZES[config] = kv_sizes(model.to(torch.bfloat16))  # some experts have no float32 kernel on meta
    return _SIZES[config]
