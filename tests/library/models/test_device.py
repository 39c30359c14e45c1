"""Kernels that give the same bits every time."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch

from posttrain.models.device import DeviceParams, Runtime, use_deterministic_kernels
from tests.library.models.test_fast_paths import CPU, closure, models_of, objectives


@pytest.fixture
def torch_as_it_was() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


@pytest.mark.slow
@pytest.mark.usefixtures("torch_as_it_was")
@pytest.mark.parametrize("name", ["grpo", "rloo"])
def test_the_bits_of_a_step_are_the_same_every_time_on_two_threads(name: str) -> None:
    torch.set_num_threads(2)
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns of a kernel that it has no deterministic form of
        for turn in range(4):
            if turn == 2:
                use_deterministic_kernels()
            models = models_of(name, Runtime(CPU), 64)
            torch.set_num_threads(2)
            closure(objectives()[name], models)()
            found.append([p.grad for p in models.policy.parameters()])
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))


@pytest.mark.usefixtures("torch_as_it_was")
def test_a_gpu_repeats_itself_unless_told_not_to() -> None:
    Runtime(DeviceParams(device="cpu"))
    assert not torch.are_deterministic_algorithms_enabled(), "a CPU needs no such kernels"
    if torch.cuda.is_available():
        Runtime(DeviceParams(device="cuda", deterministic=False))
        assert not torch.are_deterministic_algorithms_enabled()
        Runtime(DeviceParams(device="cuda"))
        assert torch.are_deterministic_algorithms_enabled()
