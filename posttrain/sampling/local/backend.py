"""One model in the decoding loop: the tokens of each row so far, and the logits of the next one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from posttrain.models.forward import hidden_states, row_states, runs_in_rows
from posttrain.models.head import head_of
from posttrain.models.kv_cache import CachedAttention, PromptAttention
from posttrain.models.replay import Step, replayed
from posttrain.models.step import DecoderStep, fits, in_use
from posttrain.rollout import token_rows
from posttrain.text.layout import pack, sent


class DecoderBackend(Protocol):
    """A model that rows are decoded with; rows may leave and join."""

    def admit(self, kept: Sequence[int], fresh: Sequence[Sequence[int]], joining: Sequence[int]) -> None:
        """Let rows join; `joining`: which prompt each answers, of those kept and, after them, the fresh ones."""

    def keep_rows(self, index_R: Tensor) -> None:
        """Drop the other rows, before the rest gets its next token."""

    def next_logits(self) -> Tensor:
        """The logits of the next token [R, V], in float32 at least."""

    def append_tokens(self, token_R: Tensor, position_R: Tensor) -> None:
        """Append the token that was chosen for each row."""


def backend_of(model: Any, longest_prompt: int, max_new_tokens: int, *, replay: bool = False) -> DecoderBackend:
    """`replay`: record steps and replay them, where the model allows it."""
    if runs_in_rows(model):
        return RecomputeDecoder(model)
    return CachedDecoder(model, longest_prompt, max_new_tokens, replay=replay)


class RecomputeDecoder:
    """A model that cannot be decoded from our cache: every row is run again for each token."""

    def __init__(self, model: Any) -> None:
        head = head_of(model)
        self._model, self._head, self._device = model, head.mapped(in_use), head.weight_VD.device
        self._prompts: list[list[int]] = []
        self._rows: list[list[int]] = []

    def admit(self, kept: Sequence[int], fresh: Sequence[Sequence[int]], joining: Sequence[int]) -> None:
        self._prompts = [self._prompts[place] for place in kept] + [list(prompt) for prompt in fresh]
        self._rows += [[*self._prompts[place]] for place in joining]

    def keep_rows(self, index_R: Tensor) -> None:
        self._rows = [self._rows[place] for place in index_R.tolist()]

    def next_logits(self) -> Tensor:
        lengths_R = torch.tensor([len(row) for row in self._rows], device=self._device)
        ids_RT = torch.zeros(len(self._rows), int(lengths_R.max()), dtype=torch.long)
        for place, row in enumerate(self._rows):
            ids_RT[place, : len(row)] = torch.tensor(row)
        states = row_states(self._model, sent(ids_RT, self._device))
        last = states[torch.arange(len(self._rows), device=self._device), lengths_R - 1]
        return self._head.logits(last.to(self._head.weight_VD.dtype))

    def append_tokens(self, token_R: Tensor, position_R: Tensor) -> None:  # noqa: ARG002
        for row, token in zip(self._rows, token_R.tolist(), strict=True):
            row.append(token)


class CachedDecoder:
    """A model with a cache of ours, and its last hidden state of each row."""

    def __init__(self, model: Any, longest_prompt: int, max_new_tokens: int, *, replay: bool) -> None:
        head = head_of(model)
        self._model, self._head = model, head.mapped(in_use)
        self._device = head.weight_VD.device
        self._step = DecoderStep(model, longest_prompt + max_new_tokens) if fits(model) else None
        self._cache = CachedAttention(max_new_tokens, self._device)
        self._replay = replay and self._step is not None and self._step.windowless
        self._recorded: Step | None = None
        self._prompt_states: Tensor | None = None
        self._states_R: Tensor | None = None

    def admit(self, kept: Sequence[int], fresh: Sequence[Sequence[int]], joining: Sequence[int]) -> None:
        kept_P, joining_R = (torch.tensor(one, dtype=torch.long, device=self._device) for one in (kept, joining))
        states = [] if self._prompt_states is None else [self._prompt_states[kept_P]]
        attention = None
        if fresh:
            layout = pack(token_rows(fresh, [[]] * len(fresh))).to(self._device)
            attention = PromptAttention(layout)
            every = hidden_states(self._model, layout.ids_N[None], layout.positions_N[None], attention)[0]
            states.append(every[layout.last_B])
        self._prompt_states = torch.cat(states)
        new_R = self._prompt_states[joining_R]
        self._states_R = new_R if self._states_R is None else torch.cat([self._states_R, new_R])
        self._cache.admit(kept_P, attention, joining_R)

    def keep_rows(self, index_R: Tensor) -> None:
        self._cache.keep_rows(index_R)
        self._states_R = None if self._states_R is None else self._states_R[index_R]

    def next_logits(self) -> Tensor:
        assert self._states_R is not None, "no row has been admitted"
        return self._head.logits(self._states_R.to(self._head.weight_VD.dtype))

    def append_tokens(self, token_R: Tensor, position_R: Tensor) -> None:
        self._cache.step()
        if self._step is None:
            self._states_R = hidden_states(self._model, token_R[:, None], position_R[:, None], self._cache)[:, 0]
        elif self._replay and self._cache.steady():
            self._states_R = self._recording(self._step, token_R, position_R)(token_R, position_R)
        else:
            self._states_R = self._step(token_R, position_R, self._cache)

    def _recording(self, step: DecoderStep, token_R: Tensor, position_R: Tensor) -> Step:
        """The step over the rows and the memory that there are now."""
        if self._recorded is None or not self._cache.fixed:
            self._recorded = None  # its memory is free for the next
            self._cache.fix()
            self._recorded = replayed(partial(step, cache=self._cache), token_R, position_R)
        return self._recorded
