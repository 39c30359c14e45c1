"""Samplers for a run with several processes. Each process gets all completions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import torch

from posttrain.distributed import world
from posttrain.measure.counts import count
from posttrain.rollout import Kept
from posttrain.sampling.engines import Engine, EngineArgs, SampledModel, Servers
from posttrain.sampling.sampler import (
    BUILTIN_CAN,
    VLLM_CAN,
    Capability,
    Completion,
    Finish,
    KeptSampling,
    Mixture,
    Request,
    RoutedSampling,
    Sampler,
    SamplingParams,
    rest,
)
from posttrain.text.packing import joined_kept

if TYPE_CHECKING:
    from posttrain.sampling.builtin import LocalSampler

FINISHES: tuple[Finish, ...] = ("stop", "length")


class DistributedSampler:
    """Decodes with this process's policy. Prompts are distributed over the processes in turn, with all their requests.

    Sharded models are gathered while they decode.
    """

    def __init__(self, local: LocalSampler) -> None:
        self._local, self.can, self.version = local, local.can, local.version

    @property
    def context(self) -> int | None:
        """The model's context length."""
        return self._local.context

    @property
    def computes_with(self) -> str:
        """The device and number format."""
        return self._local.computes_with

    def sync(self, model: Any, version: str) -> None:
        """Sample from this model from now on."""
        self._local.sync(model, version)
        self.version = version

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
        """Return a completion for each request."""
        if world.count() == 1:
            return self._local.generate(requests, params, seed, greedy=greedy, mixture=mixture, advance=advance)
        from posttrain.models.sharding import whole

        places = places_of_ranks(requests)
        local_requests = [requests[place] for place in places[world.rank()]]
        others = [] if mixture is None else [mixture.other]
        with whole(self._local.model, *others):
            done = self._local.generate(local_requests, params, seed, greedy=greedy, mixture=mixture, advance=advance)
        completions: dict[int, Completion] = {}
        with_sets = isinstance(params, KeptSampling) and params.truncates
        for numbers, part in zip(places, _exchanged(done, kept=with_sets), strict=True):
            completions |= zip(numbers, part, strict=True)
        others_tokens = sum(len(one.ids) for one in completions.values()) - sum(len(one.ids) for one in done)
        count({"generate_tokens": others_tokens})  # the local sampler counted this process's own
        return [completions[place] for place in range(len(requests))]


class RankZeroSampler:
    """An external engine that only the run's first process calls. Each process gets all completions."""

    def __init__(self, longest: int, engine: Sampler | None = None) -> None:
        """`longest`: the most tokens of a request. `engine`: the engine in the first process."""
        self._longest, self._engine = longest, engine
        self.can: frozenset[Capability] = VLLM_CAN - {"background"}  # whose threads would meet those of other ranks
        self.version = ""

    @property
    def context(self) -> int | None:
        """Maximum number of tokens of a request with its completion."""
        return self._longest

    def sync(self, model: Any, version: str) -> None:
        """Send the weights to the engine. The other processes help to gather them."""
        from posttrain.sampling.vllm.together import announce, follow

        self.version = version
        if self._engine is None:
            follow(model)
        else:
            self._engine.sync(model, version)
            announce("done")

    def rest(self) -> None:
        """Let the engine free memory, if it can."""
        rest(self._engine)

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
        """Return a completion for each request."""
        done: list[Completion] = []
        if self._engine is not None:
            done = self._engine.generate(requests, params, seed, greedy=greedy, mixture=mixture, advance=advance)
        completions = _exchanged(done)[0]
        return _with_experts(completions, done) if isinstance(params, RoutedSampling) else completions


def places_of_ranks(requests: Sequence[Request]) -> list[list[int]]:
    """Return the indices of each process's requests.

    Requests with the same tokens share a prefill and stay together.
    """
    prompts: dict[tuple[int, ...], int] = {}
    numbers = [prompts.setdefault(tuple(request.ids), len(prompts)) for request in requests]
    size = world.count()
    return [[place for place, number in enumerate(numbers) if number % size == rank] for rank in range(size)]


def _exchanged(done: Sequence[Completion], *, kept: bool = False) -> list[list[Completion]]:
    """Return the completions of all processes. `kept`: whether they carry the tokens they were drawn from."""
    shape = torch.tensor(
        [x for completion in done for x in (len(completion.ids), FINISHES.index(completion.finish))], dtype=torch.long
    )
    ids = torch.tensor([token for completion in done for token in completion.ids], dtype=torch.long)
    logps = torch.tensor([logp for completion in done for logp in completion.logps], dtype=torch.float64)
    sent = [shape, ids, logps]
    if kept:
        none = torch.zeros(0, dtype=torch.int32)
        joined = joined_kept([Kept(none, none), *(done_here.kept for done_here in done if done_here.kept)])
        sent += [joined.ids, joined.counts]
    return [_completions(*parts) for parts in zip(*(world.gathered_tensors(part) for part in sent), strict=True)]


def _completions(shape: torch.Tensor, ids: torch.Tensor, logps: torch.Tensor, *sets: torch.Tensor) -> list[Completion]:
    lengths, finishes = shape.view(-1, 2).T.tolist() if shape.numel() else ([], [])
    if not lengths:
        return []
    starts = [0, *accumulate(lengths)]
    parts = [slice(*bounds) for bounds in pairwise(starts)]
    kept = Kept(*sets) if sets else None
    return [
        Completion(ids[part].tolist(), logps[part].tolist(), FINISHES[finish], kept and kept.part(part))
        for part, finish in zip(parts, finishes, strict=True)
    ]


def _with_experts(completions: Sequence[Completion], done: Sequence[Completion]) -> list[Completion]:
    """Return the completions with the experts of the first process's list, which is complete.

    `done`: this process's.
    """
    local_experts = [completion.experts for completion in done if completion.experts is not None]
    shapes = world.gathered([[*part.shape] for part in local_experts])[0]
    flat = torch.cat([torch.zeros(0, dtype=torch.int16), *(part.flatten() for part in local_experts)])
    first = world.gathered_tensors(flat.view(torch.uint8))[0].view(torch.int16)  # gloo sends no int16
    parts = zip(completions, torch.split(first, [math.prod(shape) for shape in shapes]), shapes, strict=True)
    return [replace(completion, experts=part.view(shape)) for completion, part, shape in parts]


@contextmanager
def _opened(
    model: SampledModel, sampling: SamplingParams, longest: int, where: str, args: EngineArgs,  # noqa: ARG001
    servers: Servers = 1,  # noqa: ARG001
) -> Iterator[Sampler]:  # fmt: skip
    from posttrain.sampling.builtin import LocalSampler

    yield DistributedSampler(LocalSampler(model.policy, model.text.stops, model.runtime, section=f"{where}.sampling"))


ENGINES = {"builtin": Engine(BUILTIN_CAN, _opened)}
