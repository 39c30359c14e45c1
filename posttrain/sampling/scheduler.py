"""Choose the waiting requests to decode next, within the slots and the memory for keys and values."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import torch

from posttrain.errors import ParamsError
from posttrain.models.decoder.step import DecoderBackend
from posttrain.models.device import free_bytes
from posttrain.sampling.sampler import SamplingParams

FREE_SHARE = 0.5
"""The share of free memory for keys and values, unless `kv_gb` is set. Steps and prefills need the rest."""


class Admission:
    """The waiting requests.

    Memory is estimated for the worst case: all prompts as long as the longest, no early end.
    """

    def __init__(
        self,
        prompts: Sequence[tuple[int, ...]],
        params: SamplingParams,
        device: torch.device,
        backends: Iterable[DecoderBackend],
        section: str,
    ) -> None:
        """`prompts`: the prompt of each request. `section`: the section of `params`, for errors."""
        self._section = section
        self._prompts, self._params, free = prompts, params, free_bytes(device)
        parts = [backend.kv_bytes() for backend in backends]
        self._token, self._row = sum(token for token, _ in parts), sum(row for _, row in parts)
        self._limit, self._limit_of_one = FREE_SHARE * free, free
        if params.kv_gb is not None:
            self._limit = self._limit_of_one = params.kv_gb * 1e9
        self._waiting = deque(self._order())

    def take(self, running: Sequence[int]) -> list[int]:
        """Return the numbers of the waiting requests that start now."""
        used, joining = {self._prompts[number] for number in running}, list[int]()
        longest = max(map(len, used), default=0)
        while self._waiting and len(running) + len(joining) < self._params.rows:
            prompt = self._prompts[self._waiting[0]]
            used.add(prompt)
            longest = max(longest, len(prompt))
            rows = len(running) + len(joining) + 1
            if rows == 1:
                self._check_one(prompt)
            elif self._bytes(len(used), longest, rows) > self._limit:
                break
            joining.append(self._waiting.popleft())
        return joining

    def _order(self) -> list[int]:
        """Return the requests in order; longest prompts first if not all fit, because the others are padded to them."""
        numbers, unique = list(range(len(self._prompts))), set(self._prompts)
        rows, longest = min(len(numbers), self._params.rows), max(map(len, unique), default=0)
        if self._bytes(len(unique), longest, rows) <= self._limit:
            return numbers
        return sorted(numbers, key=lambda number: -len(self._prompts[number]))

    def _bytes(self, prompts: int, longest: int, rows: int) -> int:
        return prompts * longest * self._token + rows * self._row

    def _check_one(self, prompt: Sequence[int]) -> None:
        """Reject a request that does not fit even alone."""
        needed, longest, given = self._bytes(1, len(prompt), 1), self._params.max_tokens, self._params.kv_gb is not None
        if needed <= self._limit_of_one:
            return
        what = f"the keys and values of a prompt of {len(prompt)} tokens and a completion of {longest} take "
        what += f"{needed / 1e9:.3g} GB, and {self._limit_of_one / 1e9:.3g} GB are {'allowed' if given else 'free'}"
        fix = "Lower sampling.max_tokens, or give shorter prompts"
        raise ParamsError(what=what, where=f"{self._section}.kv_gb", fix=f"Raise it. {fix}" if given else fix)
