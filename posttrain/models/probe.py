"""Whether a model can be run packed and decoded from a cache: tried at load, so that no sample is quietly wrong."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor

from posttrain.errors import ModelError
from posttrain.models.attention import NAME
from posttrain.models.cache import CachedAttention, PromptAttention
from posttrain.models.forward import backbone, head_weight, hidden_states
from posttrain.text.layout import pack

ROWS = ((0, 1, 2), (3, 4))
"""Two rows, so that what leaks from one into the other shows; the second has a token to decode."""
NEXT = 5
TOLERANCE = 0.01
"""Of the largest value: rounding is far below it, a wrong mask or position far above."""
MEND = "Use a model of a family that docs/generation.md lists"
KINDS = {"full_attention", "sliding_attention"}
FAULTS = (ArithmeticError, AttributeError, LookupError, ModelError, RuntimeError, TypeError, ValueError)
"""What transformers' models raise for arguments that they do not take, and our attention for what it does not know."""


@torch.inference_mode()
def check_runs(model: Any, where: str) -> None:
    """Refuse a model whose values, packed and decoded, are not those of its own code row by row."""
    text = model.config.get_text_config()
    odd = sorted(set(getattr(text, "layer_types", None) or ()) - KINDS)
    if odd:
        raise ModelError(what=f"it has layers of {', '.join(odd)}, which no cache here holds", where=where, mend=MEND)
    head = None if type(model).__name__.endswith("ForSequenceClassification") else head_weight(model)
    first, second = ([token % text.vocab_size for token in row] for row in ROWS)
    following = NEXT % text.vocab_size
    attention = _Noted([first, second])
    try:
        found = _packed_and_decoded(model, attention, following)
        found = found if head is None else found @ head.T
        model.set_attn_implementation("eager")
        expected = _plain(backbone(model) if head is None else model, [first, [*second, following]])
    except FAULTS as error:
        what = f"{type(model).__name__} cannot be run packed ({type(error).__name__}: {error!s:.200})"
        raise ModelError(what=what, where=where, mend=MEND) from error
    finally:
        model.set_attn_implementation(NAME)
    if _slides(text) and not any(attention.windows):
        what = f"{type(model).__name__} does not tell its layers' attention of its sliding window"
        raise ModelError(what=what, where=where, mend=MEND)
    gap, size = float((found - expected).abs().max()), float(expected.abs().max())
    if not math.isfinite(size):
        what, mend = f"{type(model).__name__} gives values that are not finite", "Take the config of these weights"
        raise ModelError(what=what, where=where, mend=mend)
    if not torch.allclose(found, expected, rtol=0, atol=TOLERANCE * size, equal_nan=True):
        what = f"{type(model).__name__} gives other values when it is run packed (by {gap:.2g} of {size:.2g})"
        raise ModelError(what=what, where=where, mend=MEND)


class _Noted(PromptAttention):
    """A prefill that notes the window of each layer."""

    def __init__(self, rows: list[list[int]]) -> None:
        self.layout = pack(rows, [[]] * len(rows))
        self.windows: list[int | None] = []
        super().__init__(self.layout)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        self.windows.append(window)
        return super().attend(layer, query, key, value, scale, window)


def _packed_and_decoded(model: Any, attention: _Noted, following: int) -> Tensor:
    """The last hidden states of both rows' tokens, and of one more of the second row."""
    layout = attention.layout
    packed = hidden_states(model, layout.ids_N[None], layout.positions_N[None], attention)[0]
    cache, one, none = CachedAttention(1, packed.device), torch.tensor([1]), torch.tensor([], dtype=torch.long)
    cache.admit(none, attention, one)
    cache.step()
    place = attention.lengths_P[one]
    return torch.cat([packed, hidden_states(model, torch.tensor([[following]]), place[:, None], cache)[0]])


def _plain(run: Any, rows: list[list[int]]) -> Tensor:
    """The logits of each row by itself, or the last hidden states of a backbone."""
    outputs = [run(input_ids=torch.tensor([row]), use_cache=False) for row in rows]
    return torch.cat([(one.logits if "logits" in one else one.last_hidden_state)[0] for one in outputs])


def _slides(config: Any) -> bool:
    """Whether some layer sees a sliding window, as far as the config of this class says."""
    known = {field.name for field in dataclasses.fields(config)}
    kinds = getattr(config, "layer_types", None) or ("sliding_attention",)
    told = "sliding_window" in known and config.sliding_window is not None
    return told and getattr(config, "use_sliding_window", True) and "sliding_attention" in kinds
