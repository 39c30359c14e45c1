"""The decoding loop: prompts prefilled once, rows that end make place for those that wait, log-probs kept.

A completion depends on the model, its prompt, the seed and its name alone: neither on the rows beside it nor on when
it got its slot.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from pydantic import Field, field_validator
from torch import Tensor

from posttrain.models.device import Device
from posttrain.params import Params
from posttrain.rollout.choice import choose
from posttrain.rollout.draw import mixture_logits, row_keys, uniform
from posttrain.rollout.voice import voice_of
from posttrain.rollout.written import Written
from posttrain.text.stops import Stops

DROP_SHARE = 0.2
"""Finished rows are dropped once they are this share of those decoding: dropping copies the cache."""

DRAWN_AHEAD = 32
"""Random numbers that are made at a time for each row."""


class SamplingParams(Params):
    """How completions are drawn."""

    max_tokens: int = Field(32, ge=1, description="longest completion, stop token included")
    temperature: float = Field(1.0, ge=1e-4, le=10, description="logits are divided by it; training does the same")
    top_p: float = Field(
        1.0,
        gt=0,
        le=1,
        description="draw from the fewest likeliest tokens that hold this share of the mass",
    )
    top_k: int | None = Field(None, ge=1, description="draw from this many likeliest tokens; null: from all")
    stop: list[str] = Field(
        default_factory=list,
        description="a completion also ends when its text contains one of these strings, which stays in it",
    )
    rows: int = Field(1024, ge=1, description="completions decoded at a time (memory, not results)")

    @field_validator("stop")
    @classmethod
    def _said(cls, stop: list[str]) -> list[str]:
        if "" in stop:
            raise ValueError("every text contains the empty string, so nothing would be said. Remove it")
        return stop


@dataclass(frozen=True)
class Mixture:
    """A second model to sample with: pi^(1 - share) other^share, made to sum to 1 (Munos 2023)."""

    other: Any
    share: float


@dataclass(frozen=True)
class Samples:
    """The n completions of each prompt, prompt by prompt."""

    ids: list[list[int]]
    logps: list[list[float]]
    truncated: list[bool]


def sample(
    model: Any,
    prompts: Sequence[Sequence[int]],
    names: Sequence[str],
    *,
    n: int,
    params: SamplingParams,
    seed: int,
    stop: Stops,
    device: Device,
    advance: Callable[[int], None] | None = None,
    mixture: Mixture | None = None,
) -> Samples:
    """n samples of each prompt; `names` (one per prompt) and the seed alone decide the random numbers."""
    return _generate(model, prompts, names, n, params, seed, stop, device, advance, mixture)


def greedy(
    model: Any,
    prompts: Sequence[Sequence[int]],
    *,
    params: SamplingParams,
    stop: Stops,
    device: Device,
    advance: Callable[[int], None] | None = None,
) -> Samples:
    """The likeliest continuation of each prompt, token by token."""
    return _generate(model, prompts, None, 1, params, 0, stop, device, advance, None)


@torch.inference_mode()
def _generate(
    model: Any,
    prompts: Sequence[Sequence[int]],
    names: Sequence[str] | None,
    n: int,
    params: SamplingParams,
    seed: int,
    stop: Stops,
    device: Device,
    advance: Callable[[int], None] | None,
    mixture: Mixture | None,
) -> Samples:
    written = Written(len(prompts) * n, params.max_tokens, stop, params.stop)
    keys = None if names is None else row_keys(seed, [f"{name}:{i}" for name in names for i in range(n)])
    was_training = model.training
    model.eval()
    with device.autocast():
        _Decoder(model, prompts, n, params, keys, stop, device, written, advance, mixture).run()
    model.train(was_training)
    return Samples(written.ids, written.logps, written.truncated)


def steps_between_looks(device: torch.device) -> int:
    """How often to ask which rows have ended: an accelerator has to be waited for."""
    return 1 if device.type == "cpu" else 8


class _Decoder:
    """Slots of rows that are decoded at a time; rows that end make place for those that wait."""

    def __init__(
        self,
        model: Any,
        prompts: Sequence[Sequence[int]],
        n: int,
        params: SamplingParams,
        keys: Tensor | None,
        stop: Stops,
        device: Device,
        written: Written,
        advance: Callable[[int], None] | None,
        mixture: Mixture | None,
    ) -> None:
        self._prompts, self._n, self._params, self._keys = [tuple(one) for one in prompts], n, params, keys
        self._written, self._advance, self._device = written, advance, device.torch
        self._stops = stop.tokens
        longest = max((len(one) for one in prompts), default=0)
        self._share = 0.0 if mixture is None else mixture.share
        models = [model] if mixture is None else [model, mixture.other]
        self._voices = [voice_of(one, longest, params.max_tokens, replay=device.replay) for one in models]
        self._look_every = steps_between_looks(self._device)
        self._waiting, self._owed = deque(range(len(prompts) * n)), [n] * len(prompts)
        self._slots: list[int] = []
        """The number of the completion in each slot."""
        self._cached: dict[tuple[int, ...], int] = {}
        """The prompts whose keys are at hand, and where."""
        self._tokens: list[Tensor] = []
        self._logps: list[Tensor] = []
        self._keys_R: Tensor | None = None
        self._done_R = torch.zeros(0, dtype=torch.bool)

    def run(self) -> None:
        """Write every completion."""
        self._admit()
        while self._slots:
            token_R, logp_R = choose(self._logits(), self._draw(), self._params.top_p, self._params.top_k)
            self._tokens.append(token_R)
            self._logps.append(logp_R)
            self._steps += 1
            if self._due(token_R):
                self._change(token_R)
            else:
                self._hear(token_R, self._position_R)
                self._position_R += 1

    def _logits(self) -> Tensor:
        logits = [voice.logits().div_(self._params.temperature) for voice in self._voices]
        return logits[0] if len(logits) == 1 else mixture_logits(logits[0], logits[1], self._share)

    def _draw(self) -> Tensor | None:
        """Each row's number for its next token."""
        if self._keys_R is None:
            return None
        place = self._steps % DRAWN_AHEAD
        if place == 0:
            self._draws_RT = uniform(self._keys_R, DRAWN_AHEAD, self._begun_R + self._steps)
        return self._draws_RT[:, place]

    def _hear(self, token_R: Tensor, position_R: Tensor) -> None:
        for voice in self._voices:
            voice.hear(token_R, position_R)

    def _due(self, token_R: Tensor) -> bool:
        """Whether so many rows have ended that it is time to let them go."""
        for token in self._stops:
            self._done_R |= token_R == token
        if self._steps == self._left:
            return True
        if self._steps % self._look_every:
            return False
        if self._params.stop:
            self._write()
            finished = sum(self._written.ended[number] for number in self._slots)
        else:
            finished = int(self._done_R.sum())
        return finished >= DROP_SHARE * len(self._slots)

    def _write(self) -> None:
        """Bring what was decoded to the host."""
        tokens_RT, logps_RT = (torch.stack(part, dim=1).tolist() for part in (self._tokens, self._logps))
        for number, tokens, logps in zip(self._slots, tokens_RT, logps_RT, strict=True):
            self._written.add(number, tokens, logps)
        self._tokens, self._logps = [], []

    def _change(self, token_R: Tensor) -> None:
        """Let rows go that have ended, and rows in that wait."""
        if self._tokens:
            self._write()
        kept = [slot for slot, number in enumerate(self._slots) if not self._written.ended[number]]
        self._report()
        self._slots = [self._slots[slot] for slot in kept]
        index_R = torch.tensor(kept, dtype=torch.long, device=self._device)
        for voice in self._voices:
            voice.keep_rows(index_R)
        if kept:
            self._hear(token_R[index_R], self._position_R[index_R])
        self._admit()

    def _report(self) -> None:
        """Tell how many prompts have got all their completions."""
        for number in self._slots:
            self._owed[number // self._n] -= self._written.ended[number]
        complete = {number // self._n for number in self._slots if self._written.ended[number]}
        if self._advance:
            self._advance(sum(self._owed[prompt] == 0 for prompt in complete))

    def _admit(self) -> None:
        """Fill the free slots; prompts that no row answers any more make place for new ones."""
        free = min(self._params.rows - len(self._slots), len(self._waiting))
        joining = [self._waiting.popleft() for _ in range(free)]
        if joining:
            asked = [self._prompts[number // self._n] for number in joining]
            wanted = {*asked, *(self._prompts[number // self._n] for number in self._slots)}
            kept = [prompt for prompt in self._cached if prompt in wanted]
            fresh = [prompt for prompt in dict.fromkeys(asked) if prompt not in self._cached]
            places = [self._cached[prompt] for prompt in kept]
            self._cached = {prompt: place for place, prompt in enumerate([*kept, *fresh])}
            for voice in self._voices:
                voice.admit(places, fresh, [self._cached[prompt] for prompt in asked])
            self._slots += joining
        self._begin()

    def _begin(self) -> None:
        """What the steps until the next change need to know of the rows."""
        self._tokens, self._logps, self._steps = [], [], 0
        begun = [len(self._written.ids[number]) for number in self._slots]
        prompts = [len(self._prompts[number // self._n]) for number in self._slots]
        self._left = self._params.max_tokens - max(begun, default=0)
        self._begun_R = torch.tensor(begun, device=self._device)
        self._position_R = self._begun_R + torch.tensor(prompts, device=self._device)
        self._done_R = torch.zeros_like(self._begun_R, dtype=torch.bool)
        self._keys_R = None if self._keys is None else self._keys[self._slots].to(self._device)
