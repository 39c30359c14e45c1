"""Attention of decoding rows to the keys and values that they have seen, each prompt's kept once for all its rows.

Scores of a step are those against the prompt, one matrix product for all rows of that prompt, beside those against the
row's own tokens; one softmax runs over both.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.models.attention import PackedAttention
from posttrain.text.layout import Layout


class CachedAttention:
    """Keys and values of R decoding rows in preallocated memory.

    Usage: prefill with a packed layout of the distinct prompts, then `step` before each decoded token.
    """

    def __init__(self, layout: Layout, prompts_R: Tensor, room: int) -> None:
        """`layout`: the distinct prompts; `prompts_R`: which of them each row answers; `room`: tokens to come."""
        self._packed, self._room, self._used = PackedAttention(layout), room, 0
        starts_N = layout.positions_N == 0
        self._place_N = starts_N.cumsum(0) - 1, layout.positions_N
        lengths_P = torch.bincount(self._place_N[0])
        self._shape = lengths_P.numel(), self._packed.longest
        unseen = torch.arange(self._shape[1], device=lengths_P.device) >= lengths_P[:, None]
        self._bias_PT = torch.zeros(unseen.shape, device=unseen.device).masked_fill_(unseen, -torch.inf)[:, None]
        self._prompts: dict[int, tuple[Tensor, Tensor]] = {}
        self._own: dict[int, tuple[Tensor, Tensor]] = {}
        self._sharing = _Sharing(prompts_R, self._shape[0])
        self.longest = self._shape[1] + room

    def step(self) -> None:
        """Make place for one more token in each row."""
        self._used += 1

    def keep_rows(self, index_R: Tensor) -> None:
        """Drop finished rows, so that they cost nothing from here on."""
        self._sharing = _Sharing(self._sharing.prompts_R[index_R], self._shape[0])
        self._own = {layer: (keys[index_R], values[index_R]) for layer, (keys, values) in self._own.items()}

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Prefill: packed attention, and keep the keys. Decode: [R, H, 1, D] -> [R, 1, H, D]."""
        if self._used == 0:
            self._prompts[layer] = self._padded(key[0]), self._padded(value[0])
            return self._packed.attend(layer, query, key, value, scale)
        own_keys, own_values = self._remember(layer, key, value)
        rows, heads, _, width = query.shape
        kv_heads = key.shape[1]
        query = query.reshape(rows, kv_heads, heads // kv_heads, width) * scale
        prompt_keys, prompt_values = self._prompts[layer]
        shared = torch.baddbmm(
            self._bias(kv_heads, query.dtype), self._sharing.by_prompt(query), prompt_keys.transpose(1, 2)
        )
        alone = torch.bmm(query.flatten(0, 1), own_keys.transpose(1, 2)).view(rows, kv_heads, -1, self._used)
        p = torch.cat([self._sharing.by_row(shared, kv_heads), alone], dim=3).softmax(3).to(query.dtype)
        split = self._shape[1]
        out = torch.bmm(p[..., split:].flatten(0, 1), own_values).view(query.shape)
        out = out + self._sharing.by_row(torch.bmm(self._sharing.by_prompt(p[..., :split]), prompt_values), kv_heads)
        return out.view(rows, 1, heads, width)

    def _bias(self, kv_heads: int, dtype: torch.dtype) -> Tensor:
        """0 for what a prompt holds and -inf for its padding [P K, 1, T]: the same in every layer and step."""
        if self._bias_PT.shape[0] != self._shape[0] * kv_heads or self._bias_PT.dtype != dtype:
            self._bias_PT = self._bias_PT.to(dtype).repeat_interleave(kv_heads, 0)
        return self._bias_PT

    def _remember(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Write the step's keys and values [R, K, 1, D]; what each row has seen of its own, [R K, used, D]."""
        if layer not in self._own:
            rows, heads, _, width = key.shape
            empty = key.new_empty(2, rows, heads, self._room, width)
            self._own[layer] = (empty[0], empty[1])
        seen = []
        for memory, part in zip(self._own[layer], (key, value), strict=True):
            memory[:, :, self._used - 1] = part[:, :, 0]
            seen.append(memory.flatten(0, 1)[:, : self._used])
        return seen[0], seen[1]

    def _padded(self, part_HND: Tensor) -> Tensor:
        """[K, N, D] of the packed prompts -> [P K, T, D], padded on the right."""
        heads, _, width = part_HND.shape
        prompts, longest = self._shape
        padded = part_HND.new_zeros(prompts, longest, heads, width)
        padded[self._place_N] = part_HND.transpose(0, 1)
        return padded.transpose(1, 2).reshape(prompts * heads, longest, width)


class _Sharing:
    """Which rows answer which prompt: rows stand in slots, as many for each prompt."""

    def __init__(self, prompts_R: Tensor, prompts: int) -> None:
        self.prompts_R, self._prompts = prompts_R, prompts
        counts_P = torch.bincount(prompts_R, minlength=prompts)
        self._each = max(int(counts_P.max()), 1) if counts_P.numel() else 1
        order_R = prompts_R.argsort(stable=True)
        first_P = counts_P.cumsum(0) - counts_P
        rank_R = torch.empty_like(prompts_R)
        rank_R[order_R] = torch.arange(prompts_R.numel(), device=prompts_R.device) - first_P[prompts_R[order_R]]
        self._slots_R = prompts_R * self._each + rank_R
        every = torch.arange(prompts * self._each, device=prompts_R.device)
        self._full = torch.equal(self._slots_R, every)

    def by_prompt(self, part: Tensor) -> Tensor:
        """[R, K, Q, X] of rows -> [P K, slots Q, X]."""
        _, heads, queries, width = part.shape
        if not self._full:
            slots = part.new_zeros(self._prompts * self._each, heads, queries, width)
            part = slots.index_copy_(0, self._slots_R, part)
        part = part.view(self._prompts, self._each, heads, queries, width).transpose(1, 2)
        return part.reshape(self._prompts * heads, self._each * queries, width)

    def by_row(self, part: Tensor, heads: int) -> Tensor:
        """[P K, slots Q, X] -> [R, K, Q, X]."""
        width = part.shape[2]
        part = part.view(self._prompts, heads, self._each, -1, width).transpose(1, 2).flatten(0, 1)
        return part if self._full else part[self._slots_R]
