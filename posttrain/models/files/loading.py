"""Load a model of the class in its config, with transformers' conversion. Errors list faulty files.

A model with a scalar head has the class `...ForSequenceClassification` of its family, even if transformers has none. On
disk both are the same: the backbone's tensors under the family's own prefix, `score.weight` [1, hidden], and
`num_labels` 1 in config.json.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from logging import CRITICAL
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from posttrain.errors import ModelError, shortened
from posttrain.late_imports import load_meta_kernels
from posttrain.models.device import free_bytes
from posttrain.models.files.save_dtype import unshared
from posttrain.models.files.weights import FLOATS, WEIGHTS, WeightFiles, kind
from posttrain.models.forward.forward import backbone
from posttrain.models.forward.layers import fuse_layers
from posttrain.models.forward.norms import fuse_norms
from posttrain.models.self_check import verify_forward

SUFFIX = "ForSequenceClassification"
WHOLE_TEXT = "scores_whole_text"
"""A key in config.json for a scorer that was not trained here and reads everything its chat template writes."""


def is_scorer(model: Any) -> bool:
    """Tell whether the model has a scalar head."""
    return type(model).__name__.endswith(SUFFIX)


def scorer_name(model_type: str) -> str:
    """Return the class name of a family's scorer: transformers' class, or a class built like it."""
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    )

    listed = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES.get(model_type)
    return listed or re.sub("(ForCausalLM|LMHeadModel)$", "", MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type]) + SUFFIX


def model_class(config: Any) -> Any:
    """Return the class in config.architectures. It must be a transformers class or a scorer."""
    import transformers

    name = config.architectures[0]
    cls = getattr(transformers, name, None)
    if cls is None and name == scorer_name(config.model_type):
        return _generic(name, config.model_type)
    if cls is None:
        fix = "Use an architecture of this version of transformers; code from the Hub is never run"
        raise ModelError(what=f"unknown architecture '{name}'", where="config.json", fix=fix)
    return cls


def with_scalar_head(model: Any, where: str) -> Any:
    """Return the language model's backbone with a scalar head, initialised to 0, instead of the language model head."""
    config = model.config
    config.architectures, config.num_labels = [scorer_name(config.model_type)], 1
    with torch.device("meta"):
        scorer = model_class(config)(config)
    head = getattr(scorer, "score", None)
    same = type(scorer.base_model) is type(backbone(model))
    if not same or not isinstance(head, nn.Linear) or dict(head.named_parameters()).keys() != {"weight"}:
        what = f"{type(scorer).__name__} is not the backbone of {type(model).__name__} plus one matrix `score`"
        raise ModelError(what=what, where=where, fix="Use a family that docs/models.md lists")
    setattr(scorer, scorer.base_model_prefix, backbone(model))
    scorer.score = nn.Linear(head.in_features, 1, bias=False)
    nn.init.zeros_(scorer.score.weight)
    return scorer


def _generic(name: str, model_type: str) -> Any:
    """Return a scorer for a family that lacks one, by transformers' own recipe."""
    import transformers
    from transformers.modeling_layers import GenericForSequenceClassification
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    causal = getattr(transformers, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type])
    family = next(cls for cls in causal.__mro__ if cls.__name__.endswith("PreTrainedModel"))
    # transformers converts weights for classes of its own modules only
    attributes = {"__module__": family.__module__, "base_model_prefix": family.base_model_prefix or "model"}
    return type(name, (GenericForSequenceClassification, family), attributes)


OLD_BUFFERS = re.compile(r"(attn|attention)\.(masked_)?bias$|rotary_emb\.inv_freq$")
"""Buffers such as masks in old files, which models now create. A tensor of the model with the same name takes
precedence."""
BUILD_ERRORS = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


def load_weights(cls: Any, config: Any, weights: WeightFiles) -> Any:
    """Return the model of a config with these weights, using transformers' conversion of names and layouts."""
    where = str(weights.folder / "config.json")
    layers = config.get_text_config().num_hidden_layers
    if layers > len(weights):
        what = f"num_hidden_layers = {layers!r:.40} is impossible with {len(weights)} tensors"
        raise ModelError(what=what, where=where, fix="Use the config that belongs to the weights")
    tied = dict(meta_model(cls, config, where).all_tied_weights_keys)
    _check_dtypes(weights)
    with quiet():
        try:
            model, info = cls.from_pretrained(
                None,
                config=config,
                state_dict={name: weights.later(name) for name in weights},
                dtype=torch.float32,
                attn_implementation="eager",
                ignore_mismatched_sizes=True,
                output_loading_info=True,
                local_files_only=True,
                trust_remote_code=False,
            )
        except (*BUILD_ERRORS, OSError, SafetensorError) as error:
            what = f"the weights do not fit {cls.__name__} ({shortened(str(error), 300)})"
            fix = "Use the weights that belong to the config"
            raise ModelError(what=what, where=str(weights.folder), fix=fix) from error
    _check_fit(info, weights.folder)
    _refuse([f"{name} is not finite" for name in not_finite(model)], weights.folder)
    untied = sorted(set(tied) - set(model.all_tied_weights_keys))
    if untied:
        what = f"the config ties {', '.join(untied)} to other weights, but the files contain separate values"
        raise ModelError(what=what, where=where, fix="Set tie_word_embeddings: false in it")
    with quiet():
        verify_forward(prepared(model), str(weights.folder))
    return model


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers: its loader reads one tensor at a time here, and our errors report problems."""
    from transformers.utils import logging

    os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"  # threads would read ahead and hold a second copy of the weights
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(CRITICAL)
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def _check_dtypes(weights: WeightFiles) -> None:
    """Check that every tensor is floating point, except old masks."""
    faults = [
        f"{name} is {kind(weights.tensor(name).dtype)}, expected floating point of 16 bits or more"
        for name in weights
        if weights.later(name).get_dtype() not in FLOATS and not OLD_BUFFERS.search(name)
    ]
    _refuse(faults, weights.folder)


def _check_fit(info: dict[str, Any], folder: Path) -> None:
    """Reject weights with missing, unexpected or misshapen tensors."""
    faults = [f"missing {name}" for name in sorted(info["missing_keys"])]
    faults += [f"unexpected {name}" for name in sorted(info["unexpected_keys"]) if not OLD_BUFFERS.search(name)]
    faults += [
        f"{name} has shape {list(stored)}, expected {list(expected)}"
        for name, stored, expected in sorted(info["mismatched_keys"])
    ]
    _refuse(faults, folder)


def _refuse(faults: list[str], folder: Path) -> None:
    if faults:
        shown = "; ".join(faults[:8]) + (f" and {len(faults) - 8} more" if len(faults) > 8 else "")
        raise ModelError(what=shown, where=str(folder / WEIGHTS), fix="Save the model again with its own config")


def not_finite(model: Any) -> list[str]:
    """Return the weights with values that are not finite."""
    return [name for name, part in unshared(model).items() if not torch.isfinite(part).all()]


def meta_model(cls: Any, config: Any, where: str, *, fits: bool = True) -> Any:
    """Return the model without memory for tensors. Raise if no model can be built from the config.

    `fits`: raise too if the memory that is free would not hold it.
    """
    from huggingface_hub.errors import StrictDataclassError

    try:
        model = _without_values(cls, config)
    except (*BUILD_ERRORS, StrictDataclassError) as error:
        fix = "Use the config.json that belongs to the weights"
        raise ModelError(
            what=f"no model can be built from the config ({error!r:.200})", where=where, fix=fix
        ) from error
    size, free = sum(part.numel() for part in model.parameters()) * 4.0, free_bytes(torch.device("cpu"))
    if fits and size > free:
        what = f"its weights take {size / 1e9:.3g} GB in float32, but {free / 1e9:.3g} GB of memory are free"
        raise ModelError(what=what, where=where, fix="Use a smaller model or a larger machine")
    return model


def _without_values(cls: Any, config: Any) -> Any:
    """Return the model on torch's device "meta". If it needs Python kernels that a stage imports late, import them."""
    try:
        with torch.device("meta"):
            return cls(config)
    except NotImplementedError:
        load_meta_kernels()
    with torch.device("meta"):
        return cls(config)


def prepared(model: Any) -> Any:
    """Return the model with our attention, norms and layers, ready for use."""
    from posttrain.models.forward.forward import register

    model.set_attn_implementation(register())
    fuse_norms(model)
    fuse_layers(model)
    return model.eval()
