"""Keys and values of decoding rows in pages, for one attention kernel per layer.

A prompt's full pages are stored once for all its rows. The rest is copied into each row's own pages, followed by the
completion. When rows leave and join, only the page table changes. Shapes and addresses stay, so a step is captured once
for each batch size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from posttrain.models.decoder.kv_cache import KeyValue, PromptAttention
from posttrain.models.device import unsorted
from posttrain.models.forward.flash import use_own
from posttrain.models.forward.forward import Scoring
from posttrain.models.forward.varlen import kernel
from posttrain.text.packing import sent

PAGE = 256
"""Tokens per page. The kernel requires multiples of it."""
SMALLEST = 8
"""Rows of the smallest batch. Larger batches have powers of 2."""


@dataclass(frozen=True, eq=False)
class _Prompt:
    length: int
    pages: list[int]


def batch_rows(rows: int) -> int:
    """Return the number of rows that a step computes, including empty rows."""
    return max(SMALLEST, 1 << (rows - 1).bit_length())


def own_pages(max_new_tokens: int) -> int:
    """Return the number of pages only for one row: the rest of its prompt and its longest completion."""
    return -(-(PAGE - 1 + max_new_tokens) // PAGE)


class PagedAttention:
    """Keys and values of R decoding rows, used like `CachedAttention`. `locate` begins a step."""

    def __init__(self, longest_prompt: int, max_new_tokens: int, device: torch.device) -> None:
        self._pages_per_row, self._device = own_pages(max_new_tokens), device
        self._prompts: list[_Prompt] = []
        self._rows: list[tuple[_Prompt, list[int]]] = []
        """The prompt of each row, and the row's own pages."""
        self._pools: dict[int, list[Tensor]] = {}
        """Per layer: all keys and values [pages, PAGE, K, D]; missing rows write to page 0."""
        self._size, self._free = 1, list[int]()
        self._table_RP = torch.zeros(0, longest_prompt // PAGE + self._pages_per_row, dtype=torch.int32, device=device)
        self.graphs: dict[int, Callable[[Tensor, Tensor], Tensor]] = {}
        """The captured steps by their rows; none after memory has moved."""

    def step(self) -> None:
        """Start the next token of each row."""

    def locate(self, position_R: Tensor) -> None:
        """Compute the place of each row's token, and the number of tokens that it attends to."""
        page_R = self._table_RP[: position_R.numel()].gather(1, (position_R // PAGE)[:, None])[:, 0]
        self._place_R, self._seen_R = page_R * PAGE + position_R % PAGE, (position_R + 1).to(torch.int32)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> Tensor:
        """Return the attention output of one token per row: [R, H, 1, D] -> [R, 1, H, D]."""
        attention, window, ends = kernel(), scoring.window, self._ends[: query.shape[0] + 1]
        assert attention is not None, "check `takes_pages` first"
        use_own()
        with unsorted():
            for pool, new in zip(self._pools[layer], (key, value), strict=True):
                pool.flatten(0, 1).index_copy_(0, self._place_R, new[:, :, 0])
        out: Tensor = attention(
            query[:, :, 0], *self._pools[layer], ends, ends, 1, self._table_RP.shape[1] * PAGE,
            scale=scoring.scale, window_size=(-1, -1) if window is None else (window - 1, 0), enable_gqa=True,
            seqused_k=self._seen_R, block_table=self._table_RP[: query.shape[0]],
            num_splits=1,  # with more a row's bits depend on other rows, and torch 2.13 may give NaN
        )  # fmt: skip
        return out[:, None]

    def keep_rows(self, index_R: Tensor) -> None:
        """Drop all other rows and free their pages."""
        places = index_R.tolist()
        for place in {*range(len(self._rows))} - {*places}:
            self._free += self._rows[place][1]
        self._rows = [self._rows[place] for place in places]
        self._write_table()

    def admit(self, kept_P: Tensor, fresh: PromptAttention | None, joining_R: Tensor) -> None:
        """Keep these prompts and add fresh prompts. `joining_R`: each new row's index in [*kept, *fresh] prompts."""
        places = kept_P.tolist()
        for place in {*range(len(self._prompts))} - {*places}:
            self._free += self._prompts[place].pages
        new = [
            _Prompt(length, self._take(-(-length // PAGE))) for length in (fresh.lengths_P.tolist() if fresh else [])
        ]
        self._prompts = [self._prompts[place] for place in places] + new
        joining = [(self._prompts[place], self._take(self._pages_per_row)) for place in joining_R.tolist()]
        self._rows += joining
        self._grow({} if fresh is None else fresh.keys_values)
        if fresh is not None:
            self._store(new, fresh.keys_values)
        self._copy_ends([(prompt.pages[-1], row_pages[0]) for prompt, row_pages in joining if prompt.length % PAGE])
        self._write_table()

    def _take(self, pages: int) -> list[int]:
        """Return free pages. Allocate more if there are too few."""
        if missing := max(0, pages - len(self._free)):
            more = max(missing, self._size // 8)
            self._free += range(self._size, self._size + more)
            self._size += more
        return [self._free.pop() for _ in range(pages)]

    def _grow(self, fresh: dict[int, KeyValue]) -> None:
        """Allocate memory for all pages, which moves them."""
        for layer, pair in fresh.items() if not self._pools else ():
            self._pools[layer] = [part.new_zeros(0, PAGE, part.shape[1], part.shape[3]) for part in pair]
        for layer, pools in self._pools.items():
            if missing := self._size - pools[0].shape[0]:
                self.graphs.clear()
                self._pools[layer] = [pad(pool, (0, 0, 0, 0, 0, 0, 0, missing)) for pool in pools]

    def _store(self, prompts: list[_Prompt], keys_values: dict[int, KeyValue]) -> None:
        """Write the keys and values of prompts [P, K, T, D] into their pages."""
        most = max(len(prompt.pages) for prompt in prompts)
        target = self._sent([page for prompt in prompts for page in prompt.pages])
        source = self._sent(
            [index * most + page for index, prompt in enumerate(prompts) for page in range(len(prompt.pages))]
        )
        for layer in [*keys_values]:
            for pool, part in zip(self._pools[layer], keys_values.pop(layer), strict=True):
                padded = pad(part.transpose(1, 2), (0, 0, 0, 0, 0, most * PAGE - part.shape[2]))
                with unsorted():
                    pool.index_copy_(0, target, padded.reshape(-1, PAGE, *part.shape[1::2])[source])

    def _copy_ends(self, pairs: list[tuple[int, int]]) -> None:
        """Copy the part of a prompt after its full pages into the first page of each of its new rows."""
        source, target = (self._sent([pair[side] for pair in pairs]) for side in (0, 1))
        with unsorted():
            for pool in (pool for pools in self._pools.values() for pool in pools):
                pool.index_copy_(0, target, pool[source])

    def _write_table(self) -> None:
        """Write the pages of each row; 0 for empty rows."""
        if len(self._rows) > self._table_RP.shape[0]:
            self.graphs.clear()
            self._table_RP = self._table_RP.new_zeros(batch_rows(len(self._rows)), self._table_RP.shape[1])
            self._ends = torch.arange(self._table_RP.shape[0] + 1, dtype=torch.int32, device=self._device)
        table = torch.zeros(self._table_RP.shape, dtype=torch.int32)
        for index, (prompt, row_pages) in enumerate(self._rows):
            pages = [*prompt.pages[: prompt.length // PAGE], *row_pages]
            table[index, : len(pages)] = torch.tensor(pages, dtype=torch.int32)
        self._table_RP.copy_(sent(table, self._device))

    def _sent(self, places: list[int]) -> Tensor:
        return sent(torch.tensor(places, dtype=torch.long), self._device)
