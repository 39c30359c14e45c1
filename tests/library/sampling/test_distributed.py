"""Samplers of a run with several processes: who samples what, and that all get everything."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from posttrain.distributed import world
from posttrain.models.device import DeviceParams, Runtime
from posttrain.rollout import Kept
from posttrain.sampling.builtin import LocalSampler
from posttrain.sampling.distributed import (
    DistributedSampler,
    RankZeroSampler,
    _completions,
    _exchanged,
    _with_experts,
    places_of_ranks,
)
from posttrain.sampling.sampler import (
    VLLM_CAN,
    Completion,
    KeptSampling,
    Request,
    RoutedSampling,
    SamplingParams,
)
from posttrain.text.stops import Stops
from tests.library.models.tiny import tiny_model

REQUESTS = [Request([1, 2], "a"), Request([3], "b"), Request([1, 2], "c"), Request([4], "d")]
PARAMS = SamplingParams(max_tokens=4)


def local() -> LocalSampler:
    return LocalSampler(tiny_model(), Stops((5,), str), Runtime(DeviceParams(device="cpu")), "v1")


@pytest.fixture
def first_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is the first of two; the other one has nothing."""
    monkeypatch.setattr(world, "count", lambda: 2)
    monkeypatch.setattr(world, "rank", lambda: 0)
    monkeypatch.setattr(world, "gathered_tensors", lambda part: [part, part[:0]])


def test_one_process_samples_itself() -> None:
    sampler = DistributedSampler(local())
    assert sampler.context == 256 and sampler.computes_with == "cpu, fp32" and sampler.version == "v1"
    assert sampler.generate(REQUESTS, PARAMS, 0) == local().generate(REQUESTS, PARAMS, 0)
    sampler.sync(tiny_model(seed=1), "v2")
    assert sampler.version == "v2"
    assert sampler.generate(REQUESTS, PARAMS, 0) != local().generate(REQUESTS, PARAMS, 0)


@pytest.mark.usefixtures("first_of_two")
def test_requests_of_one_prompt_stay_together() -> None:
    assert places_of_ranks(REQUESTS) == [[0, 2, 3], [1]]


@pytest.mark.usefixtures("first_of_two")
def test_completions_come_back_in_the_order_of_their_requests() -> None:
    mine = [REQUESTS[0], REQUESTS[2]]
    wanted = local().generate(mine, PARAMS, 0)
    found = DistributedSampler(local()).generate(mine, PARAMS, 0)
    assert [one.ids for one in found] == [one.ids for one in wanted]
    assert [one.logps for one in found] == [pytest.approx(one.logps) for one in wanted]
    assert [one.finish for one in found] == [one.finish for one in wanted]
    kept = DistributedSampler(local()).generate(mine, KeptSampling(max_tokens=4, top_k=3), 0)
    assert all(one.kept is not None and one.kept.counts.tolist() == [3] * len(one.ids) for one in kept)


def test_completions_as_tensors() -> None:
    some = [Completion([7, 8], [-0.5, -1.0], "stop"), Completion([9], [-2.0], "length")]
    assert _exchanged(some) == [some] and _exchanged([]) == [[]]
    assert _completions(torch.tensor([2, 0, 1, 1]), torch.tensor([7, 8, 9]), torch.tensor([-0.5, -1.0, -2.0])) == some
    whole = Kept(torch.tensor([7, 6, 9], dtype=torch.int32), torch.tensor([2, 0, 1], dtype=torch.int32))
    kept = [whole.part(slice(0, 2)), whole.part(slice(2, 3))]
    carried = [Completion(one.ids, one.logps, one.finish, part) for one, part in zip(some, kept, strict=True)]
    (found,) = _exchanged(carried, kept=True)
    parts: list[Any] = [one.kept for one in found]
    assert [(part.ids.tolist(), part.counts.tolist()) for part in parts] == [([7, 6], [2, 0]), ([9], [1])]


class Engine:
    """An engine that the first process calls."""

    version = ""

    def sync(self, model: Any, version: str) -> None:
        self.version = version

    def generate(self, requests: Any, params: SamplingParams, seed: int, **_: Any) -> list[Completion]:
        experts = torch.arange(4, dtype=torch.int16).view(2, 1, 2) if isinstance(params, RoutedSampling) else None
        return [Completion([seed], [-1.0], "stop", experts=experts) for _ in requests]


def test_an_engine_of_the_first_process() -> None:
    engine = Engine()
    sampler = RankZeroSampler(40, engine)  # type: ignore[arg-type]
    assert sampler.context == 40 and sampler.can == VLLM_CAN - {"background"}
    sampler.sync(tiny_model(), "v3")
    assert engine.version == sampler.version == "v3"
    assert sampler.generate(REQUESTS[:2], PARAMS, 6) == [Completion([6], [-1.0], "stop")] * 2
    assert RankZeroSampler(40).generate(REQUESTS, PARAMS, 6) == []
    (routed,) = sampler.generate(REQUESTS[:1], RoutedSampling(max_tokens=4), 6)
    assert routed.experts is not None and routed.experts.tolist() == [[[0, 1]], [[2, 3]]]


def test_experts_are_those_of_the_first_process() -> None:
    experts: list[Tensor] = [torch.full((count, 1, 2), count, dtype=torch.int16) for count in (1, 3)]
    some = [Completion([1], [-1.0], "stop", experts=part) for part in experts]
    found = _with_experts([Completion([1], [-1.0], "stop")] * 2, some)
    assert len(found) == 2
    assert all(
        one.experts is not None and torch.equal(one.experts, part) for one, part in zip(found, experts, strict=True)
    )
