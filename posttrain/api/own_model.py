"""Use of the caller's own model: its device, tokenizer and attention."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from posttrain.errors import DataError, ModelError
from posttrain.models.device import DeviceParams
from posttrain.models.files.text import context_of
from posttrain.text.chat import DATE, ChatText

Messages = Sequence[Mapping[str, Any]]


def check_rows(text: ChatText, lengths: Sequence[int], argument: str) -> None:
    """Reject rows that are longer than the model's context."""
    longest = max(lengths, default=0)
    if text.context is not None and longest > text.context:
        place = lengths.index(longest)
        what = f"it has {longest} tokens, more than the model's context of {text.context}"
        raise DataError(what=what, where=f"{argument}[{place}]", fix="Shorten it or leave it out")


def own_model(model: Any) -> Any:
    """Return the model without PEFT's wrapper. Its layers keep their adapters."""
    if not hasattr(model, "get_base_model"):
        return model
    active = model.active_peft_config
    if active.is_prompt_learning:
        what = f"peft's {active.peft_type.value} adds virtual tokens, which posttrain cannot train or sample with"
        raise ModelError(what=what, where="model", fix="Use an adapter on layers, e.g. peft.LoraConfig")
    return model.get_base_model()


def turns_of(turns: str | Messages, role: str) -> Messages:
    """Return a string as one turn with this role."""
    return [{"role": role, "content": turns}] if isinstance(turns, str) else turns


def text_of(model: Any, tokenizer: Any, today: str = DATE, variables: Mapping[str, Any] | None = None) -> ChatText:
    """Return the tokenizer with the chat template and the stop tokens of the model."""
    ends = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    ends = [] if ends is None else ends if isinstance(ends, list) else [ends]
    return ChatText(tokenizer, "tokenizer", ends, today, context=context_of(model.config), variables=variables)


def device_of(model: Any) -> DeviceParams:
    """Return the settings for the model's device, without changing torch's settings."""
    return DeviceParams(device=model.device.type, deterministic=False, threads=min(torch.get_num_threads(), 256))


@contextmanager
def our_attention(model: Any) -> Iterator[None]:
    """Use our attention for packed rows; restore the model's own attention afterwards."""
    from posttrain.models.forward.forward import register, runs_in_rows
    from posttrain.models.master_weights import is_trained_in_bf16
    from posttrain.models.self_check import verify_forward

    if model.dtype != torch.float32 and not is_trained_in_bf16(model):
        what, fix = (
            f"its weights are {model.dtype}",
            "Call model.float(); on a GPU it is computed in bfloat16 and updated in float32",
        )
        raise ModelError(what=what, where=type(model).__name__, fix=fix)
    model_attention = model.config._attn_implementation
    try:
        ours = register()
        if not hasattr(model, "runs_in_rows"):
            verify_forward(model, type(model).__name__)
            model.runs_in_rows = runs_in_rows(model)
        if not model.runs_in_rows:
            model.set_attn_implementation(ours)
        yield
    finally:
        model.set_attn_implementation(model_attention)


def frozen_of(model: Any, reference: Any | None, *, moves: bool) -> Any:
    """Return the reference of a run: the given model, or a copy of the policy.

    A given model that would change is copied.
    """
    if reference is None:
        return copy.deepcopy(model)
    return copy.deepcopy(reference) if moves else reference
