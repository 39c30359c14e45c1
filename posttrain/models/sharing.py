"""Work that rows of one prompt share, done once: rows in any order, regrouped by prompt and back."""

from __future__ import annotations

import torch
from torch import Tensor


class Sharing:
    """Which rows answer which prompt: rows stand in places, as many for each prompt."""

    def __init__(self, prompts_R: Tensor, prompts: int) -> None:
        """`prompts_R`: the prompt of each row; `prompts`: how many there are, also those that no row answers."""
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
