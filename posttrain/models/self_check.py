"""A check at load: a model must compute the same values when run packed and decoded from our cache."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from posttrain.errors import ModelError
from posttrain.models.decoder.kv_cache import CachedAttention, PromptAttention
from posttrain.models.decoder.step import OwnCacheDecoder
from posttrain.models.forward.forward import NAME, Scoring, backbone, hidden_states, packed_states, run_in_rows
from posttrain.models.forward.logp import Head, head_of
from posttrain.rollout import token_rows
from posttrain.text.packing import pack

ROWS = ((0, 1, 2), (3, 4))
"""Two rows, so that leaks between them show. The second has a token to decode."""
NEXT = 5
TOLERANCE = 1e-3
"""As a share of the largest value. Rounding is far below it, a wrong mask or position far above."""
SOFTCAP_SCALE = 100.0
"""The factor for hidden states, so that a soft cap of the logits shows."""
TESTED_FAMILY = "Use a model of a family that docs/models.md lists"
KINDS = {"full_attention", "sliding_attention"}
FAULTS = (ArithmeticError, AttributeError, LookupError, ModelError, RuntimeError, TypeError, ValueError)
"""Errors of transformers' models for unknown arguments, and of our attention for unsupported arguments."""


@torch.inference_mode()
def verify_forward(model: Any, where: str) -> None:
    """Run the model packed if that computes the same values, else in padded rows, else reject it."""
    first, second = ([token % model.config.get_text_config().vocab_size for token in row] for row in ROWS)
    rows = [first, [*second, NEXT % model.config.get_text_config().vocab_size]]
    head = None if type(model).__name__.endswith("ForSequenceClassification") else head_of(model)
    try:
        model.set_attn_implementation("eager")
        expected = _reference(backbone(model) if head is None else model, rows)
        scaled = None if head is None else _scaled_head(model, rows)
        model.set_attn_implementation(NAME)
    except FAULTS as error:
        what = f"{type(model).__name__} cannot be run ({type(error).__name__}: {error!s:.200})"
        raise ModelError(what=what, where=where, fix=TESTED_FAMILY) from error
    if not bool(expected.isfinite().all()):
        what, fix = f"{type(model).__name__} computes values that are not finite", "Use the config of these weights"
        raise ModelError(what=what, where=where, fix=fix)
    fault = _fault(lambda: _packed_and_decoded(model, rows), head, expected)
    if fault is not None:
        run_in_rows(model)
        again = _fault(
            lambda: packed_states(model, pack(token_rows(rows, [[]] * len(rows))).to(device_of(model))), head, expected
        )
        if again is not None:
            raise ModelError(what=f"{type(model).__name__} {again}, in padded rows too", where=where, fix=TESTED_FAMILY)
        model.has_own_cache = head is not None and _decodes_from_its_own_cache(model, rows, expected)
        how = "its own cache" if model.has_own_cache else "no cache: slow"
        print(f"{where}: {type(model).__name__} {fault}: it runs in padded rows and samples with {how}")
    if head is not None and scaled is not None and not _close(head.logits(scaled[0]), scaled[1]):
        what = f"{type(model).__name__} does not compute its logits as states times a matrix, capped and scaled"
        raise ModelError(what=what, where=where, fix=TESTED_FAMILY)


def _scaled_head(model: Any, rows: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Return the head's inputs, scaled so that a soft cap shows, and the model's logits for them."""
    scaled: list[Tensor] = []

    def scale(_: Any, inputs: tuple[Tensor]) -> tuple[Tensor]:
        scaled.append(SOFTCAP_SCALE * inputs[0])
        return (scaled[-1],)

    hook = model.get_output_embeddings().register_forward_pre_hook(scale)
    try:
        logits = _reference(model, rows)
    finally:
        hook.remove()
    return torch.cat([states[0] for states in scaled]), logits


def _close(values: Tensor, expected: Tensor) -> bool:
    """Tell whether values are equal except for rounding."""
    size = float(expected.abs().max())
    return torch.allclose(values, expected, rtol=0, atol=TOLERANCE * size)


def _fault(run: Callable[[], Tensor], head: Head | None, expected: Tensor) -> str | None:
    """Return what is wrong with the hidden states of a run; None if nothing is."""
    try:
        states = run()
    except FAULTS as error:
        why = error.what if isinstance(error, ModelError) else f"{type(error).__name__}: {error!s:.200}"
        return f"cannot be run packed ({why})"
    values = states if head is None else head.logits(states)
    gap, size = float((values - expected).abs().max()), float(expected.abs().max())
    if not _close(values, expected):
        return f"computes different values when packed (by {gap:.2g} of {size:.2g})"
    return None


class _WindowRecorder(PromptAttention):
    """A prefill that records the sliding window of each layer."""

    def __init__(self, rows: list[list[int]], device: torch.device) -> None:
        self.packed = pack(token_rows(rows, [[]] * len(rows))).to(device)
        self.windows: list[int | None] = []
        super().__init__(self.packed)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> Tensor:
        self.windows.append(scoring.window)
        return super().attend(layer, query, key, value, scoring)


def _packed_and_decoded(model: Any, rows: list[list[int]]) -> Tensor:
    """Return the last hidden states of both rows' tokens. The last token is decoded."""
    text = model.config.get_text_config()
    odd = sorted(set(getattr(text, "layer_types", None) or ()) - KINDS)
    if odd:
        raise LookupError(f"layers of {', '.join(odd)}, which our cache does not support")
    device = device_of(model)
    attention = _WindowRecorder([rows[0], rows[1][:-1]], device)
    packed = attention.packed
    states = hidden_states(model, packed.ids_N[None], packed.positions_N[None], attention)[0]
    if _slides(text) and not any(attention.windows):
        raise LookupError("its layers do not pass their sliding window to attention")
    cache, second = CachedAttention(1, device), torch.tensor([1], device=device)
    cache.admit(second[:0], attention, second)
    cache.step()
    place, following = attention.lengths_P[second], torch.tensor([rows[1][-1:]], device=device)
    return torch.cat([states, hidden_states(model, following, place[:, None], cache)[0]])


def _decodes_from_its_own_cache(model: Any, rows: list[list[int]], expected: Tensor) -> bool:
    """Tell whether its own cache gives the logits of whole rows, even if rows share a prompt and one leaves."""
    decoder, device = OwnCacheDecoder(model), device_of(model)
    first, second = rows
    try:
        decoder.admit([], [first[:-1], second[:-1]], [0, 1, 1])
        prefilled = decoder.next_logits()
        decoder.keep_rows(torch.tensor([1, 2], device=device))
        decoder.append_tokens(torch.tensor([second[-1]] * 2, device=device), torch.tensor([2, 2], device=device))
        decoded = decoder.next_logits()
    except FAULTS:
        return False
    places = [len(first) - 2, len(first) + len(second) - 2, len(first) + len(second) - 2, -1, -1]
    return _close(torch.cat([prefilled, decoded]), expected[places])


def _reference(run: Any, rows: list[list[int]]) -> Tensor:
    """Return the logits of each row run alone, or the last hidden states of a backbone."""
    device = device_of(run)
    outputs = [run(input_ids=torch.tensor([row], device=device), use_cache=False) for row in rows]
    return torch.cat([(output.logits if "logits" in output else output.last_hidden_state)[0] for output in outputs])


def device_of(model: Any) -> torch.device:
    """Return the device of the model's weights."""
    device: torch.device = next(model.parameters()).device
    return device


def _slides(config: Any) -> bool:
    """Tell whether some layer has a sliding window, as far as the config of this class says."""
    known = {field.name for field in dataclasses.fields(config)}
    kinds = getattr(config, "layer_types", None) or ("sliding_attention",)
    has_window = "sliding_window" in known and config.sliding_window is not None
    return has_window and getattr(config, "use_sliding_window", True) and "sliding_attention" in kinds
