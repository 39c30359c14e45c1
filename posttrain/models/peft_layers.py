"""Models that a caller has wrapped with peft: merge the adapters into a whole model that `load_model` can read."""

from __future__ import annotations

import copy
from typing import Any

import torch

from posttrain.errors import ModelError
from posttrain.models.adapters import adapter_of


def has_peft_layers(model: Any) -> bool:
    """Tell whether the caller's model has peft layers. Models with posttrain's own adapter do not count."""
    return adapter_of(model) is None and any(_is_wrapper(part) for part in model.modules())


@torch.no_grad()
def merged_copy(model: Any) -> Any:
    """Return a plain model with merged adapters in host memory. It shares weights that no adapter changes."""
    changed = {id(part) for layer in model.modules() if _is_wrapper(layer) for part in _tensors(layer)}
    memo: dict[int, Any] = {id(part): _on_host(part) if id(part) in changed else part for part in _tensors(model)}
    whole = copy.deepcopy(model, memo)
    try:
        while wrapper := next(((name, part) for name, part in whole.named_modules() if _is_wrapper(part)), None):
            _replace(whole, *wrapper)
    except (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        fix = "Train without `output`, and save the model with model.save_pretrained"
        what = f"peft cannot merge its adapter into it ({error!r:.200})"
        raise ModelError(what=what, where="output", fix=fix) from error
    for name in ("peft_config", "_hf_peft_config_loaded"):
        vars(whole).pop(name, None)
    head, embeddings = whole.get_output_embeddings(), whole.get_input_embeddings()
    if head is not None and head.weight is not embeddings.weight:
        whole.config.tie_word_embeddings = False
    return whole


def _tensors(part: Any) -> list[torch.Tensor]:
    return [*part.parameters(), *part.buffers()]


def _on_host(part: torch.Tensor) -> torch.Tensor:
    """Return a copy in host memory, because the device may have no room for another one."""
    copied = part.detach().to("cpu", copy=True)
    return torch.nn.Parameter(copied, part.requires_grad) if isinstance(part, torch.nn.Parameter) else copied


def _is_wrapper(part: Any) -> bool:
    """Tell whether a module is peft's wrapper around one of the model's own."""
    return hasattr(part, "unload_and_optionally_merge_module") or hasattr(part, "get_base_layer")


def _replace(model: Any, name: str, wrapper: Any) -> None:
    """Replace peft's wrapper by a layer with the adapter merged."""
    if hasattr(wrapper, "unload_and_optionally_merge_module"):
        plain = wrapper.unload_and_optionally_merge_module(merge=True, safe_merge=False, adapter_names=None)
    else:
        inner = wrapper.get_base_layer()
        for key, part in list(inner.named_parameters(recurse=False)):  # a tied head keeps the weight without adapter
            setattr(inner, key, torch.nn.Parameter(part.clone()))
        wrapper.merge()
        plain = wrapper.get_base_layer()
    parent, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(parent), attribute, plain)
