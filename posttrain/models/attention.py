"""One attention function for every transformers model, which asks the layout it is given.

transformers' models look their attention up by name and hand extra keyword arguments down to it. `posttrain` is
registered once; training passes a packed layout, decoding a preallocated cache, and the model's own code stays.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from posttrain.errors import ModelError
from posttrain.text.layout import Layout

NAME = "posttrain"


class Attends(Protocol):
    """Something that knows which tokens see which: [1|B, H, N, D] queries, keys, values -> [1|B, N, H, D]."""

    longest: int

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor: ...


class PackedAttention:
    """Causal attention within each row of a packed layout."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.longest = max((gather.shape[1] for gather in layout.gathers), default=0)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Gather rows side by side, attend causally, put each token's output back in its packed place."""
        del layer
        query_N, key_N, value_N = (part[0].transpose(0, 1) for part in (query, key, value))
        outputs = []
        for gather in self._layout.gathers:
            out = scaled_dot_product_attention(
                _rows(query_N, gather),
                _rows(key_N, gather),
                _rows(value_N, gather),
                is_causal=True,
                scale=scale,
                enable_gqa=_grouped(query, key),
            )
            outputs.append(out.transpose(1, 2).flatten(0, 1))
        return torch.cat(outputs).index_select(0, self._layout.take_N)[None]


class CachedAttention:
    """Keys and values of R decoding rows in preallocated memory, prompts flush right so that all rows write one column.

    Usage: `prefill` (a packed layout of the prompts) once, then `step` before each decoded token.
    """

    def __init__(self, layout: Layout, prompts_R: Tensor, room: int) -> None:
        """`layout`: the distinct prompts; `prompts_R`: which of them each row answers; `room`: tokens to come."""
        self._packed = PackedAttention(layout)
        self._layout: Layout | None = layout
        self._prompts_R = prompts_R
        self._widest = max(layout.gathers[0].shape[1] if layout.gathers else 0, 1)
        self._room = room
        self._memory: dict[int, tuple[Tensor, Tensor]] = {}
        starts, lengths = _prompt_spans(layout)
        self._slots, self._columns = _flush_right(starts, lengths, self._widest)
        self._visible = (
            torch.arange(self._widest + room, device=lengths.device) >= (self._widest - lengths[prompts_R])[:, None]
        )
        self._used = self._widest
        self.longest = self._widest + room

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Prefill: packed attention, and keep the keys. Decode: write one column, see the row's own past."""
        if self._layout is not None:
            self._keep(layer, key[0], value[0])
            return self._packed.attend(layer, query, key, value, scale)
        keys, values = self._memory[layer]
        at, end = self._used - 1, self._used
        keys[:, :, at] = key[:, :, 0]
        values[:, :, at] = value[:, :, 0]
        out = scaled_dot_product_attention(
            query,
            keys[:, :, :end],
            values[:, :, :end],
            attn_mask=self._visible[:, None, None, :end],
            scale=scale,
            enable_gqa=_grouped(query, key),
        )
        return out.transpose(1, 2)

    def step(self) -> None:
        """Make place for one more token in each row."""
        self._layout = None
        self._used += 1

    def keep_rows(self, index_R: Tensor) -> None:
        """Drop finished rows, so that they cost nothing from here on."""
        self._visible = self._visible[index_R]
        for layer, (keys, values) in self._memory.items():
            self._memory[layer] = (keys[index_R], values[index_R])

    def _keep(self, layer: int, key: Tensor, value: Tensor) -> None:
        """[H, N, D] keys of the packed prompts -> [R, H, widest + room, D]."""
        prompts = int(self._prompts_R.max()) + 1 if self._prompts_R.numel() else 0
        kept = []
        for part in (key, value):
            heads, _, width = part.shape
            memory = part.new_zeros(prompts, self._widest + self._room, heads, width)
            memory.flatten(0, 1)[self._columns_flat()] = part.transpose(0, 1)[self._slots]
            kept.append(memory[self._prompts_R].transpose(1, 2).contiguous())
        self._memory[layer] = (kept[0], kept[1])

    def _columns_flat(self) -> Tensor:
        row, column = self._columns
        return row * (self._widest + self._room) + column


def _prompt_spans(layout: Layout) -> tuple[Tensor, Tensor]:
    """(start, length) of each packed prompt: positions restart at 0."""
    starts = (layout.positions_N == 0).nonzero().squeeze(1)
    ends = torch.cat([starts[1:], starts.new_tensor([layout.ids_N.numel()])])
    return starts, ends - starts


def _flush_right(starts: Tensor, lengths: Tensor, width: int) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """(packed token, (prompt, column)) of every prompt token, prompts ending in column width - 1."""
    prompt = torch.repeat_interleave(torch.arange(lengths.numel(), device=lengths.device), lengths)
    slot = torch.arange(int(lengths.sum()), device=lengths.device)
    within = slot - starts[prompt]
    return slot, (prompt, width - lengths[prompt] + within)


def _rows(part_N: Tensor, gather: Tensor) -> Tensor:
    """[N, H, D] -> [S, H, T, D]."""
    rows, width = gather.shape
    return part_N.index_select(0, gather.flatten()).view(rows, width, *part_N.shape[1:]).transpose(1, 2)


def _grouped(query: Tensor, key: Tensor) -> bool:
    return query.shape[1] != key.shape[1]


def _attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    layout: Attends | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """What transformers calls in each layer."""
    del attention_mask
    where = f"layer {getattr(module, 'layer_idx', '?')} of {type(module).__name__}"
    if layout is None:
        raise ModelError(what="called without a layout", where=where, mend="Call it through posttrain.models.forward")
    if softcap is not None or (sliding_window is not None and layout.longest > sliding_window):
        raise ModelError(
            what=f"attention soft-capping or a sliding window of {sliding_window} shorter than {layout.longest} tokens",
            where=where,
            mend="Shorten the sequences or use a model with full attention",
        )
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    return layout.attend(int(module.layer_idx), query, key, value, scale), None  # type: ignore[arg-type]


def register() -> str:
    """Make the function known to transformers; returns its name."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(NAME, _attention)
    return NAME
