"""The KV cache of decoding rows. A prompt's keys and values are stored once for all its rows.

A step scores the prompt (one matrix product for all rows of that prompt) and the row's own tokens, with one softmax
over both. All rows write a step's keys into the same column, so a row that joined later has nothing in earlier columns.
The columns grow with the longest completion. For a layer with a sliding window, they form a ring of the window's size.
Keys and values have the dtype of the products, so that no step converts all of them.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from posttrain.models.forward.forward import PackedAttention, Scoring
from posttrain.text.packing import PackedRows

KeyValue = tuple[Tensor, Tensor]

FIRST_COLUMNS = 64
"""The initial number of columns of a KV buffer. It doubles when full."""


class PromptAttention(PackedAttention):
    """The prefill: packed attention over distinct prompts that stores their keys and values."""

    decodes = True

    def __init__(self, packed: PackedRows) -> None:
        """`packed`: rows without completions."""
        super().__init__(packed)
        self._place_N = (packed.positions_N == 0).cumsum(0) - 1, packed.positions_N
        self.lengths_P = torch.bincount(self._place_N[0])
        self._shape = self.lengths_P.numel(), max((length + count for _, length, _, count in packed.spans), default=0)
        self.keys_values: dict[int, KeyValue] = {}
        """Per layer: keys and values [P, K, T, D], padded on the right."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> Tensor:
        """Compute packed attention, and store the keys and values."""
        self.keys_values[layer] = self._padded(key[0]), self._padded(value[0])
        return super().attend(layer, query, key, value, scoring)

    def _padded(self, part_HND: Tensor) -> Tensor:
        """Return [K, N, D] of packed prompts as [P, K, T, D]."""
        heads, _, width = part_HND.shape
        padded = part_HND.new_zeros(*self._shape, heads, width)
        padded[self._place_N] = part_HND.transpose(0, 1)
        return padded.transpose(1, 2).contiguous()


class CachedAttention:
    """Keys and values of R decoding rows. Rows may leave and join between steps.

    Usage: `admit` rows whose prompts are prefilled, `step` before each decoded token, `keep_rows` to drop some.
    """

    def __init__(self, max_new_tokens: int, device: torch.device) -> None:
        none = torch.zeros(0, dtype=torch.long, device=device)
        self._max_new_tokens, self._lengths_P, self._since_R = max_new_tokens, none, none
        """`since`: the step with which a row began."""
        self._groups, self._prompts = PromptGroups(none, 0), dict[int, KeyValue]()
        """Per layer: the prompts' keys and values [P K, T, D]."""
        self._buffers: dict[int, KVBuffer] = {}
        self._now, self._first, self._late = -1, 0, False
        self._bias_PT = torch.zeros(0, 1, 0, device=device)
        self._masks: dict[tuple[str, int], Tensor] = {}

    def step(self) -> None:
        """Start the next token of each row."""
        self._now += 1
        self._masks.clear()

    @property
    def nbytes(self) -> int:
        """The memory of all keys and values in bytes."""
        prompts = sum(part.nbytes for pair in self._prompts.values() for part in pair)
        return prompts + sum(columns.nbytes for columns in self._buffers.values())

    def keep_rows(self, index_R: Tensor) -> None:
        """Drop all other rows and free their memory."""
        self._groups = PromptGroups(self._groups.prompts_R[index_R], self._lengths_P.numel())
        self._since_R = self._since_R[index_R]
        for columns in self._buffers.values():
            columns.select(index_R)
        self._recount()

    def admit(self, kept_P: Tensor, fresh: PromptAttention | None, joining_R: Tensor) -> None:
        """Keep these prompts and add fresh prompts. `joining_R`: each new row's index in [*kept, *fresh] prompts."""
        place_P = torch.full_like(self._lengths_P, -1)
        place_P[kept_P] = torch.arange(kept_P.numel(), device=kept_P.device)
        prompts_R = torch.cat([place_P[self._groups.prompts_R], joining_R])
        new_P = self._lengths_P[:0] if fresh is None else fresh.lengths_P
        before, self._lengths_P = self._lengths_P.numel(), torch.cat([self._lengths_P[kept_P], new_P])
        self._groups = PromptGroups(prompts_R, self._lengths_P.numel())
        self._gather_prompts(before, kept_P, {} if fresh is None else fresh.keys_values)
        self._since_R = torch.cat([self._since_R, torch.full_like(joining_R, self._now + 1)])
        for columns in self._buffers.values():
            columns.extend(joining_R.numel())
        self._recount()

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> Tensor:
        """Return the attention output of one token per row: [R, H, 1, D] -> [R, 1, H, D]."""
        window = scoring.window
        if layer not in self._buffers:
            self._buffers[layer] = KVBuffer(
                self._max_new_tokens if window is None else min(self._max_new_tokens, window)
            )
        own_keys, own_values = self._buffers[layer].write(self._now - self._first, key, value)
        rows, heads, _, width = query.shape
        kv_heads, used = key.shape[1], own_keys.shape[1]
        query = query.reshape(rows, kv_heads, heads // kv_heads, width) * scoring.scale
        prompt_keys, prompt_values = self._prompts[layer]
        shared = self._to_prompts(query, prompt_keys, kv_heads, scoring)
        shared = self._groups.by_row(shared, kv_heads)
        alone = _scores(query.flatten(0, 1), own_keys).view(rows, kv_heads, -1, used)
        alone = scoring.capped(alone)
        split = shared.shape[3]
        if window is not None and window < split + self._max_new_tokens:
            shared = shared.masked_fill(self._out_of_window(window, split), -torch.inf)
        if self._late:
            alone = alone.masked_fill(self._before_joining(used), -torch.inf)
        scores = torch.cat([shared, alone], dim=3)
        p = scoring.weights(scores.view(rows, heads, 1, -1)).view(scores.shape).to(query.dtype)
        out = torch.bmm(p[..., split:].flatten(0, 1), own_values).view(rows, kv_heads, -1, value.shape[3])
        out = out + self._groups.by_row(torch.bmm(self._groups.by_prompt(p[..., :split]), prompt_values), kv_heads)
        return out.view(rows, 1, heads, -1)

    def _to_prompts(self, query: Tensor, prompt_keys: Tensor, kv_heads: int, scoring: Scoring) -> Tensor:
        """Return the scores of the prompts' tokens, with one product for all rows of a prompt."""
        exact = _sums_in_float32(query)
        bias, query = self._bias(kv_heads, torch.float32 if exact else query.dtype), self._groups.by_prompt(query)
        if scoring.cap is None and not exact:
            return torch.baddbmm(bias, query, prompt_keys.transpose(1, 2))
        return scoring.capped(_scores(query, prompt_keys)) + bias

    def _recount(self) -> None:
        """Drop the columns before the oldest row's first token, and count from there."""
        if not self._since_R.numel():
            return
        first, last = (int(bound) for bound in self._since_R.aminmax())
        if first > self._first:
            for columns in self._buffers.values():
                columns.roll(first - self._first)
        self._first, self._late = first, last > first

    def _gather_prompts(self, before: int, kept_P: Tensor, fresh: dict[int, KeyValue]) -> None:
        """Return kept and fresh prompts in one tensor per layer, padded to the longest."""
        longest = int(self._lengths_P.max())
        old = self._prompts if kept_P.numel() else {}
        self._prompts = {}
        for layer in list(fresh or old):  # layer by layer, so that both copies of one layer alone are held
            parts = [[part.view(before, -1, *part.shape[1:])[kept_P] for part in old.pop(layer)]] if old else []
            parts += [list(fresh.pop(layer))] if fresh else []
            both = [torch.cat([_resized(part, longest) for part in tensors]) for tensors in zip(*parts, strict=True)]
            self._prompts[layer] = both[0].flatten(0, 1), both[1].flatten(0, 1)
        unseen = torch.arange(longest, device=kept_P.device) >= self._lengths_P[:, None]
        self._bias_PT = torch.zeros(unseen.shape, device=unseen.device).masked_fill_(unseen, -torch.inf)[:, None]

    def _bias(self, kv_heads: int, dtype: torch.dtype) -> Tensor:
        """Return 0 at a prompt's tokens and -inf at its padding [P K, 1, T]; it is the same in every layer and step."""
        if self._bias_PT.shape[0] != self._lengths_P.numel() * kv_heads or self._bias_PT.dtype != dtype:
            self._bias_PT = self._bias_PT.to(dtype).repeat_interleave(kv_heads, 0)
        return self._bias_PT

    def _out_of_window(self, window: int, prompt: int) -> Tensor:
        """Return a mask of the prompt's tokens before a row's sliding window [R, 1, 1, T]."""
        if ("window", window) not in self._masks:
            position_R = self._lengths_P[self._groups.prompts_R] + self._now - self._since_R
            at_T = torch.arange(prompt, device=position_R.device)
            self._masks["window", window] = (at_T <= (position_R - window)[:, None])[:, None, None]
        return self._masks["window", window]

    def _before_joining(self, used: int) -> Tensor:
        """Return a mask of the columns written before a row joined [R, 1, 1, used]."""
        if ("joining", used) not in self._masks:
            place_C = torch.arange(used, device=self._since_R.device)
            step_C = self._now - (self._now - self._first - place_C) % used
            self._masks["joining", used] = (step_C < self._since_R[:, None])[:, None, None]
        return self._masks["joining", used]


def _resized(part: Tensor, longest: int) -> Tensor:
    """Return [P, K, T, D] with T = longest, padded or cut on the right."""
    missing = longest - part.shape[2]
    return part if missing == 0 else pad(part, (0, 0, 0, missing))


class KVBuffer:
    """One layer's keys and values [R, K, C, D]. With `limit` columns (the window), the oldest is overwritten."""

    def __init__(self, limit: int) -> None:
        self._limit, self.size = limit, 0
        """Allocated columns."""
        self._parts: list[Tensor] = []

    @property
    def nbytes(self) -> int:
        """The memory of all columns, used or not, in bytes."""
        return sum(part.nbytes for part in self._parts)

    def write(self, step: int, key: Tensor, value: Tensor) -> list[Tensor]:
        """Write a step's keys and values [R, K, 1, D]. Return all keys and values so far, [R K, used, D]."""
        if not self._parts:
            self._parts, self.size = [key[:, :, :0], value[:, :, :0]], 0
        if step >= self.size and self.size < self._limit:
            self.size = min(max(2 * self.size, FIRST_COLUMNS), self._limit)
            self._parts = [_grown(part, self.size) for part in self._parts]
        used, place = min(step + 1, self.size), step % self.size
        seen = []
        for part, new in zip(self._parts, (key, value), strict=True):
            part[:, :, place] = new[:, :, 0]
            seen.append(part.flatten(0, 1)[:, :used])
        return seen

    def select(self, index_R: Tensor) -> None:
        """Drop the other rows."""
        self._parts = [part[index_R] for part in self._parts]

    def extend(self, rows: int) -> None:
        """Add empty rows. They are zeros, because masked values must still be finite."""
        self._parts = [torch.cat([part, part.new_zeros(rows, *part.shape[1:])]) for part in self._parts]

    def roll(self, steps: int) -> None:
        """Drop the first `steps` columns, so that steps are counted from a later step."""
        self._parts = [part.roll(-steps, 2) for part in self._parts]


class PromptGroups:
    """Maps rows to prompts. Each prompt has the same number of row slots."""

    def __init__(self, prompts_R: Tensor, prompts: int) -> None:
        """`prompts_R`: the prompt of each row. `prompts`: the number of prompts, including those without rows."""
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
        self._rows_S = torch.zeros_like(every)
        self._rows_S[self._slots_R] = torch.arange(prompts_R.numel(), device=every.device)
        """The row of each slot; that of a slot without one does not matter, since nobody reads it."""

    def by_prompt(self, part: Tensor) -> Tensor:
        """Return [R, K, Q, X] by row as [P K, slots Q, X]."""
        _, heads, queries, width = part.shape
        part = part if self._full else part.index_select(0, self._rows_S)
        part = part.view(self._prompts, self._each, heads, queries, width).transpose(1, 2)
        return part.reshape(self._prompts * heads, self._each * queries, width)

    def by_row(self, part: Tensor, heads: int) -> Tensor:
        """Return [P K, slots Q, X] as [R, K, Q, X]."""
        width = part.shape[2]
        part = part.view(self._prompts, heads, self._each, -1, width).transpose(1, 2).flatten(0, 1)
        return part if self._full else part.index_select(0, self._slots_R)


def _grown(part: Tensor, size: int) -> Tensor:
    """Return a larger buffer with the same first columns and zeros elsewhere, because masked values must be finite."""
    rows, heads, used, width = part.shape
    grown = part.new_zeros(rows, heads, size, width)
    grown[:, :, :used] = part
    return grown


def _sums_in_float32(query: Tensor) -> bool:
    """Tell whether 16-bit scores stay in float32, in which they are summed, as in FlashAttention during training."""
    return query.is_cuda and query.dtype in (torch.bfloat16, torch.float16)


def _scores(query: Tensor, keys: Tensor) -> Tensor:
    """Return the products of queries and keys [B, Q, T]."""
    if _sums_in_float32(query):
        return torch.bmm(query, keys.transpose(1, 2), out_dtype=torch.float32)
    return torch.bmm(query, keys.transpose(1, 2))
