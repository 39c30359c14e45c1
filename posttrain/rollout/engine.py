"""The decoding loop: prompts prefilled once, a preallocated cache, finished rows dropped, log-probs kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from posttrain.models.cache import CachedAttention
from posttrain.models.device import Device
from posttrain.models.forward import head_weight, hidden_states
from posttrain.models.step import DecoderStep, fits, in_use
from posttrain.params import Params
from posttrain.rollout.draw import mixture_logits, row_keys, uniform
from posttrain.text.layout import Layout, pack

DROP_SHARE = 0.2
"""Finished rows are dropped once they are this share of those decoding: dropping copies the cache."""


class SamplingParams(Params):
    """How completions are drawn."""

    max_tokens: int = Field(32, ge=1, description="longest completion, stop token included")
    temperature: float = Field(1.0, gt=0, le=10, description="logits are divided by it; training does the same")
    rows: int = Field(1024, ge=1, description="completions decoded at a time (memory)")


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
    stop: int,
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
    stop: int,
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
    stop: int,
    device: Device,
    advance: Callable[[int], None] | None,
    mixture: Mixture | None,
) -> Samples:
    was_training = model.training
    model.eval()
    samples = Samples([], [], [])
    each = max(params.rows // n, 1)
    for start in range(0, len(prompts), each):
        part = prompts[start : start + each]
        keys = None
        if names is not None:
            keys = row_keys(seed, [f"{name}:{i}" for name in names[start : start + each] for i in range(n)])
        with device.autocast():
            tokens_RT, logps_RT = _decode(model, part, n, params, keys, stop, device, mixture)
        _collect(samples, tokens_RT, logps_RT, stop)
        if advance:
            advance(len(part))
    model.train(was_training)
    return samples


def _decode(
    model: Any,
    prompts: Sequence[Sequence[int]],
    n: int,
    params: SamplingParams,
    keys_R: Tensor | None,
    stop: int,
    device: Device,
    mixture: Mixture | None,
) -> tuple[Tensor, Tensor]:
    """(tokens, log-probs), both [R, max_tokens] with R = n rows for each prompt; what follows a stop is noise."""
    distinct: list[Sequence[int]] = []
    place: dict[tuple[int, ...], int] = {}
    owner = [place.setdefault(tuple(prompt), len(place)) for prompt in prompts]
    distinct = [list(prompt) for prompt in place]
    layout = pack(distinct, [[]] * len(distinct)).to(device.torch)
    prompts_R = torch.tensor(owner, device=device.torch).repeat_interleave(n)
    lengths_R = torch.tensor([len(prompt) for prompt in prompts], device=device.torch).repeat_interleave(n)
    voice = _Voice(model, layout, prompts_R, params.max_tokens)
    second = None if mixture is None else _Voice(mixture.other, layout, prompts_R, params.max_tokens)
    rows_R = torch.arange(prompts_R.numel(), device=device.torch)
    tokens_RT = torch.full((rows_R.numel(), params.max_tokens), stop, device=device.torch)
    logps_RT = torch.zeros(tokens_RT.shape, device=device.torch)
    draws_RT = None if keys_R is None else uniform(keys_R.to(device.torch), params.max_tokens)
    done_R = torch.zeros_like(rows_R, dtype=torch.bool)
    look_every = 1 if device.torch.type == "cpu" else 8
    for t in range(params.max_tokens):
        logits = voice.logits().div_(params.temperature)
        if mixture is not None and second is not None:
            logits = mixture_logits(logits, second.logits().div_(params.temperature), mixture.share)
        token_R, logp_R = _choose(logits, None if draws_RT is None else draws_RT[:, t])
        tokens_RT[rows_R, t], logps_RT[rows_R, t] = token_R, logp_R
        done_R = done_R | (token_R == stop)
        if t + 1 == params.max_tokens:
            break
        if t % look_every == look_every - 1 or look_every == 1:
            finished = int(done_R.sum())
            if finished == rows_R.numel():
                break
            if finished >= DROP_SHARE * rows_R.numel():
                kept = (~done_R).nonzero().squeeze(1)
                for speaker in (voice, second):
                    if speaker is not None:
                        speaker.cache.keep_rows(kept)
                rows_R, token_R, lengths_R, done_R = rows_R[kept], token_R[kept], lengths_R[kept], done_R[kept]
                draws_RT = None if draws_RT is None else draws_RT[kept]
        voice.hear(token_R, lengths_R + t)
        if second is not None:
            second.hear(token_R, lengths_R + t)
    return tokens_RT, logps_RT


class _Voice:
    """One model in the decoding loop: its cache and its last hidden state of each row."""

    def __init__(self, model: Any, layout: Layout, prompts_R: Tensor, longest: int) -> None:
        self._model, self._weight = model, in_use(head_weight(model))
        self.cache = CachedAttention(layout, prompts_R, longest)
        self._step = DecoderStep(model, self.cache.longest) if fits(model, self.cache.longest) else None
        states = hidden_states(model, layout.ids_N[None], layout.positions_N[None], self.cache)[0]
        self._states_R = states[layout.last_B][prompts_R]

    def logits(self) -> Tensor:
        """What it would say next [R, V]."""
        return (self._states_R.to(self._weight.dtype) @ self._weight.T).float()

    def hear(self, token_R: Tensor, position_R: Tensor) -> None:
        """Take in the token that was chosen for each row."""
        self.cache.step()
        if self._step is not None:
            self._states_R = self._step(token_R, position_R, self.cache)
        else:
            self._states_R = hidden_states(self._model, token_R[:, None], position_R[:, None], self.cache)[:, 0]


def _choose(logits: Tensor, draw_R: Tensor | None) -> tuple[Tensor, Tensor]:
    """The token of each row and its log-prob: the likeliest, or by inverse CDF at the row's own number."""
    p = logits.softmax(1)
    top, most = logits.amax(1), p.amax(1)
    if draw_R is None:
        token_R = logits.argmax(1)
    else:
        cdf = p.cumsum(1, dtype=torch.float64)
        point = draw_R[:, None] * cdf[:, -1:]
        token_R = torch.searchsorted(cdf, point, right=True).squeeze(1).clamp(max=cdf.shape[1] - 1)
    return token_R, logits.gather(1, token_R[:, None]).squeeze(1) - (top - most.log())


def _collect(samples: Samples, tokens_RT: Tensor, logps_RT: Tensor, stop: int) -> None:
    width = tokens_RT.shape[1]
    stopped = tokens_RT == stop
    length = torch.where(stopped.any(1), stopped.int().argmax(1) + 1, width).tolist()
    truncated = (~stopped.any(1)).tolist()
    for tokens, logps, count, cut in zip(tokens_RT.tolist(), logps_RT.tolist(), length, truncated, strict=True):
        samples.ids.append(tokens[:count])
        samples.logps.append(logps[:count])
        samples.truncated.append(cut)
