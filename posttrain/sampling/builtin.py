"""Sample from a model in this process. Each prompt is prefilled once; waiting requests replace finished rows.

A completion depends only on the model, its prompt, the seed and its name, not on other rows or its slot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from posttrain.formulas.ragged import row_keys, uniform
from posttrain.measure.counts import count
from posttrain.models.decoder.step import backend_of
from posttrain.models.device import Runtime
from posttrain.models.files.text import context_of
from posttrain.rollout import Kept
from posttrain.sampling.sampler import (
    BUILTIN_CAN,
    Capability,
    Completion,
    KeptSampling,
    Mixture,
    Request,
    SamplingParams,
)
from posttrain.sampling.scheduler import Admission
from posttrain.text.stops import Stops, StopStrings


class LocalSampler:
    """Samples from a model in memory. `sync` copies nothing, because the weights are shared."""

    can: frozenset[Capability] = BUILTIN_CAN

    def __init__(
        self, model: Any, stops: Stops, runtime: Runtime, version: str = "", section: str = "sampling"
    ) -> None:
        """`section`: the key path of its sampling settings in params.yaml, for errors."""
        self._model, self._stops, self._runtime, self.version = model, stops, runtime, version
        self._section = section

    @property
    def context(self) -> int | None:
        """The model's context length."""
        return context_of(self._model.config)

    @property
    def model(self) -> Any:
        """The model to sample from."""
        return self._model

    @property
    def computes_with(self) -> str:
        """The device and number format, which are stored with samples."""
        device = self._runtime.device
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
        return f"{name}, {'bf16 weights' if self._runtime.bf16_for(self._model) else 'fp32'}"

    def sync(self, model: Any, version: str) -> None:
        """Sample from this model from now on."""
        self._model, self.version = model, version

    @torch.inference_mode()
    def generate(
        self,
        requests: Sequence[Request],
        params: SamplingParams,
        seed: int,
        *,
        greedy: bool = False,
        mixture: Mixture | None = None,
        advance: Callable[[int], None] | None = None,
    ) -> list[Completion]:
        """Return a completion for each request. Requests with the same tokens share their prefill."""
        if not requests:
            return []
        keys = None if greedy else row_keys(seed, [request.name for request in requests])
        was_training = self._model.training
        self._model.eval()
        decoder = Decoder(
            self._model, requests, params, keys, self._stops, self._runtime,
            mixture=mixture, advance=advance, section=self._section,
        )  # fmt: skip
        completions = decoder.run()
        self._model.train(was_training)
        count({"generate_tokens": sum(len(completion.ids) for completion in completions)})
        return completions


DROP_FRACTION = 0.2
"""Finished rows are dropped when they reach this fraction of all rows, because dropping copies the cache."""

RANDOM_BLOCK = 32
"""Random numbers computed at a time for each row."""


BLOCK = 128
"""The number of tokens that an accelerator sums at once."""
BELOW_1 = 1 - 2**-30
"""The largest share of a sum. It must stay below the end, where tokens may have no probability."""


def steps_between_checks(device: torch.device) -> int:
    """Return the number of steps between checks for ended rows. On a GPU, each check waits for the device."""
    return 1 if device.type == "cpu" else 8


class Decoder:
    """The decoding loop over row slots. Finished rows make room for waiting requests."""

    def __init__(
        self,
        model: Any,
        requests: Sequence[Request],
        params: SamplingParams,
        keys: Tensor | None,
        stops: Stops,
        runtime: Runtime,
        *,
        mixture: Mixture | None,
        advance: Callable[[int], None] | None,
        section: str,
    ) -> None:
        """`keys`: the random stream of each request; None: greedy decoding. `advance`: see `Sampler.generate`."""
        unique: dict[int, tuple[int, ...]] = {}
        self._prompts = [unique.setdefault(id(request.ids), tuple(request.ids)) for request in requests]
        self._params, self._keys, self._advance = params, keys, advance
        self._buffer = CompletionBuffer(len(requests), params.max_tokens, stops, params.stop)
        self._keeps = isinstance(params, KeptSampling) and params.truncates
        self._stops, self._device = stops.tokens, runtime.device
        longest = max((len(request.ids) for request in requests), default=0)
        self._share = 0.0 if mixture is None else mixture.share
        models = [model] if mixture is None else [model, mixture.other]
        graphs, compiled = runtime.cuda_graphs, runtime.compile_decoding
        self._backends = [
            backend_of(mixed, longest, params.max_tokens, cuda_graphs=graphs, compiled=compiled) for mixed in models
        ]
        self._check_every = steps_between_checks(self._device)
        self._admission = Admission(self._prompts, params, self._device, self._backends, section)
        self._slots: list[int] = []
        """The number of the request in each slot."""
        self._cached: dict[tuple[int, ...], int] = {}
        """The index of each prompt in the cache."""
        self._tokens: list[Tensor] = []
        self._logps: list[Tensor] = []
        self._sets: list[Kept] = []
        self._keys_R: Tensor | None = None
        self._done_R = torch.zeros(0, dtype=torch.bool)

    def run(self) -> list[Completion]:
        """Return a completion for each request."""
        self._admit()
        while self._slots:
            token_R, logp_R = self._sample()
            self._tokens.append(token_R)
            self._logps.append(logp_R)
            self._steps += 1
            if self._should_replace(token_R):
                self._replace_finished(token_R)
            else:
                self._append(token_R, self._position_R)
                self._position_R += 1
        return self._buffer.completions()

    def _sample(self) -> tuple[Tensor, Tensor]:
        """Return the next token of each row and its log-prob, and record which tokens it was drawn from."""
        inputs = self._logits(), self._draw(), self._params.top_p, self._params.top_k
        if not self._keeps:
            return sample_next(*inputs)
        token_R, logp_R, kept = sample_kept(*inputs)
        self._sets.append(kept)
        return token_R, logp_R

    def _logits(self) -> Tensor:
        logits = [backend.next_logits() for backend in self._backends]
        if self._params.temperature != 1:
            logits = [of_backend.div_(self._params.temperature) for of_backend in logits]
        return logits[0] if len(logits) == 1 else mixture_logits(logits[0], logits[1], self._share)

    def _draw(self) -> Tensor | None:
        """Return each row's random number for its next token."""
        if self._keys_R is None:
            return None
        place = self._steps % RANDOM_BLOCK
        if place == 0:
            self._draws_RT = uniform(self._keys_R, RANDOM_BLOCK, self._generated_R + self._steps)
        return self._draws_RT[:, place]

    def _append(self, token_R: Tensor, position_R: Tensor) -> None:
        for backend in self._backends:
            backend.append_tokens(token_R, position_R)

    def _should_replace(self, token_R: Tensor) -> bool:
        """Tell whether enough rows have ended to drop them."""
        for token in self._stops:
            self._done_R |= token_R == token
        if self._steps == self._left:
            return True
        if self._steps % self._check_every:
            return False
        if self._params.stop:
            self._flush()
            finished = sum(self._buffer.ended[number] for number in self._slots)
        else:
            finished = int(self._done_R.sum())
        return finished >= DROP_FRACTION * len(self._slots)

    def _flush(self) -> None:
        """Move the decoded tokens to the host."""
        tokens_RT, logps_RT = (torch.stack(part, dim=1).tolist() for part in (self._tokens, self._logps))
        for number, tokens, logps in zip(self._slots, tokens_RT, logps_RT, strict=True):
            self._buffer.add(number, tokens, logps)
        ids_TR = [torch.split(kept.ids, kept.counts.tolist()) for kept in self._sets]
        for number, ids_T in zip(self._slots, zip(*ids_TR, strict=True), strict=True) if ids_TR else ():
            self._buffer.keep(number, ids_T)
        self._tokens, self._logps, self._sets = [], [], []

    def _replace_finished(self, token_R: Tensor) -> None:
        """Drop rows that have ended, and admit waiting requests."""
        if self._tokens:
            self._flush()
        running = [slot for slot, number in enumerate(self._slots) if not self._buffer.ended[number]]
        if self._advance:
            self._advance(len(self._slots) - len(running))
        self._slots = [self._slots[slot] for slot in running]
        index_R = torch.tensor(running, dtype=torch.long, device=self._device)
        for backend in self._backends:
            backend.keep_rows(index_R)
        if running:
            self._append(token_R[index_R], self._position_R[index_R])
        self._admit()

    def _admit(self) -> None:
        """Fill the free slots. Prompts without rows leave the cache."""
        joining = self._admission.take(self._slots)
        if joining:
            prompts = [self._prompts[number] for number in joining]
            used = {*prompts, *(self._prompts[number] for number in self._slots)}
            still_used = [prompt for prompt in self._cached if prompt in used]
            fresh = [prompt for prompt in dict.fromkeys(prompts) if prompt not in self._cached]
            places = [self._cached[prompt] for prompt in still_used]
            self._cached = {prompt: place for place, prompt in enumerate([*still_used, *fresh])}
            for backend in self._backends:
                backend.admit(places, fresh, [self._cached[prompt] for prompt in prompts])
            self._slots += joining
        self._reset_rows()

    def _reset_rows(self) -> None:
        """Set up the tensors of the rows until the rows change again."""
        self._tokens, self._logps, self._sets, self._steps = [], [], [], 0
        generated = [len(self._buffer.ids[number]) for number in self._slots]
        prompts = [len(self._prompts[number]) for number in self._slots]
        self._left = self._params.max_tokens - max(generated, default=0)
        self._generated_R = torch.tensor(generated, device=self._device)
        self._position_R = self._generated_R + torch.tensor(prompts, device=self._device)
        self._done_R = torch.zeros_like(self._generated_R, dtype=torch.bool)
        self._keys_R = None if self._keys is None else self._keys[self._slots].to(self._device)


class CompletionBuffer:
    """The tokens, log-probs and end of each completion."""

    def __init__(self, count: int, max_tokens: int, stops: Stops, strings: Sequence[str]) -> None:
        self.ids: list[list[int]] = [[] for _ in range(count)]
        self.logps: list[list[float]] = [[] for _ in range(count)]
        self.kept: list[list[Tensor]] = [[] for _ in range(count)]
        self.ended, self.truncated = [False] * count, [False] * count
        self._max_tokens, self._stop_tokens = max_tokens, frozenset(stops.tokens)
        self._strings = StopStrings(strings, stops.decode)

    def add(self, number: int, ids: Sequence[int], logps: Sequence[float]) -> None:
        """Append to a completion. Tokens after its end are ignored."""
        if self.ended[number]:
            return
        tokens = self.ids[number]
        before = len(tokens)
        tokens.extend(ids)
        end = self._end(tokens, before)
        self.truncated[number] = end is None and len(tokens) >= self._max_tokens
        self.ended[number] = end is not None or self.truncated[number]
        if end is not None:
            del tokens[end:]
        self.logps[number].extend(logps[: len(tokens) - before])

    def keep(self, number: int, ids: Sequence[Tensor]) -> None:
        """Append the sets of tokens that the last added tokens were drawn from."""
        sets = self.kept[number]
        sets.extend(ids[: len(self.ids[number]) - len(sets)])

    def completions(self) -> list[Completion]:
        """Return the finished completions."""
        rows = zip(self.ids, self.logps, self.truncated, self.kept, strict=True)
        return [
            Completion(ids, logps, "length" if truncated else "stop", _kept_of(kept) if kept else None)
            for ids, logps, truncated, kept in rows
        ]

    def _end(self, ids: list[int], before: int) -> int | None:
        by_token = next((i + 1 for i in range(before, len(ids)) if ids[i] in self._stop_tokens), None)
        by_string = self._strings.end(ids, len(ids) - before)
        return min((end for end in (by_token, by_string) if end is not None), default=None)


def _kept_of(ids_T: Sequence[Tensor]) -> Kept:
    return Kept(torch.cat([*ids_T]), torch.tensor([len(ids) for ids in ids_T], dtype=torch.int32))


def sample_next(logits: Tensor, draw_R: Tensor | None, top_p: float, top_k: int | None) -> tuple[Tensor, Tensor]:
    """Return the next token of each row and its log-prob. top_p and top_k do not change the log-prob."""
    p = logits.softmax(1)
    if draw_R is None:
        token_R = logits.argmax(1)
    else:
        unrestricted = top_p == 1 and top_k is None
        token_R = _drawn(p if unrestricted else top_k_top_p_mask(p, top_p, top_k), draw_R)
    if p.device.type != "cpu":  # spares the passes for the largest
        return token_R, _of(p, token_R).log()
    return token_R, _of(logits, token_R) - (logits.amax(1) - p.amax(1).log())


def sample_kept(logits: Tensor, draw_R: Tensor | None, top_p: float, top_k: int | None) -> tuple[Tensor, Tensor, Kept]:
    """Return the same tokens as `sample_next`, their log-probs over the kept tokens, and the kept tokens."""
    p = top_k_top_p_mask(logits.softmax(1), top_p, top_k)
    token_R = logits.argmax(1) if draw_R is None else _drawn(p, draw_R)
    outside = p == 0
    logp_RV = logits.masked_fill(outside, -torch.inf).log_softmax(1)
    inside = outside.logical_not_()
    ids_K = inside.nonzero()[:, 1].to("cpu", torch.int32)
    return token_R, _of(logp_RV, token_R), Kept(ids_K, inside.sum(1, dtype=torch.int32).cpu())


def _of(values_RV: Tensor, token_R: Tensor) -> Tensor:
    return values_RV.gather(1, token_R[:, None]).squeeze(1)


def _drawn(p_RV: Tensor, draw_R: Tensor) -> Tensor:
    """Return the token of each row at which the cumulative probability exceeds the row's random number.

    An accelerator first sums blocks of tokens, and uses float64 only over the blocks and within one.
    """
    if p_RV.device.type == "cpu":
        return _passed(p_RV, draw_R)[0].clamp(max=p_RV.shape[1] - 1)
    missing = -p_RV.shape[1] % BLOCK
    blocks_RBX = (pad(p_RV, (0, missing)) if missing else p_RV).view(len(p_RV), -1, BLOCK)
    sums_RB = blocks_RBX.sum(2)
    block_R, cdf_RB, point_R = _passed(sums_RB, draw_R.clamp(max=BELOW_1))
    sum_R = _of(sums_RB, block_R)
    rest_R = (point_R - (_of(cdf_RB, block_R) - sum_R)) / sum_R
    inside_RX = blocks_RBX.gather(1, block_R[:, None, None].expand(-1, 1, BLOCK)).squeeze(1)
    return block_R * BLOCK + _passed(inside_RX, rest_R.clamp(0, BELOW_1))[0]


def _passed(p: Tensor, draw_R: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return where the cumulative sum exceeds each row's share of the total, the cumulative sum, and the share."""
    cdf = p.cumsum(1, dtype=torch.float64)
    point = draw_R[:, None] * cdf[:, -1:]
    return torch.searchsorted(cdf, point, right=True).squeeze(1), cdf, point.squeeze(1)


def top_k_top_p_mask(p: Tensor, top_p: float, top_k: int | None) -> Tensor:
    """Return p with 0 for all but the likeliest tokens: first top_k, then the smallest set with top_p of their mass.

    Tokens tied with the last kept token are kept too, so that the result does not depend on the vocabulary's order.
    """
    best = p.topk(min(top_k or p.shape[1], p.shape[1]), dim=1).values.double()
    before = best.cumsum(1) - best
    beyond = before >= top_p * best.sum(1, keepdim=True)
    beyond[:, 0] = False
    least = best.masked_fill(beyond, torch.inf).amin(1, keepdim=True)
    return p.masked_fill(p < least, 0)


def mixture_logits(policy_RV: Tensor, other_RV: Tensor, share: float) -> Tensor:
    """Return (1 - share) log pi + share log pi_other, the mixture that Nash-MD samples from (Munos 2023)."""
    return (1 - share) * policy_RV.log_softmax(-1) + share * other_RV.log_softmax(-1)
