"""Kernels that give the same bits every time."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from posttrain.errors import ModelError
from posttrain.models import device
from posttrain.models.device import (
    DeviceParams,
    Runtime,
    capability,
    device_name,
    family_of,
    free_bytes,
    gpu_facts,
    in_bf16,
    in_segments,
    use_deterministic_kernels,
)
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


HOST = torch.device("cpu")


def of_family(name: str) -> SimpleNamespace:
    return SimpleNamespace(config=SimpleNamespace(model_type=name))


@pytest.mark.usefixtures("torch_as_it_was")
def test_the_precision_that_a_family_supports(capsys: pytest.CaptureFixture[str]) -> None:
    only = next(iter(device.FLOAT32_ONLY))
    assert family_of(of_family("qwen3")) == "qwen3" and family_of(object()) is None
    assert [in_bf16(precision, HOST) for precision in ("fp32", "bf16", "auto")] == [False, True, False]
    with pytest.raises(ModelError, match=f"{only} models only support float32"):
        in_bf16("bf16", HOST, only)
    runtime = Runtime(DeviceParams(device="cpu", precision="bf16"))
    assert runtime.bf16_for(of_family("qwen3")) is True and runtime.bf16 is True
    model = of_family("qwen3")
    assert runtime.suit(model) is model and capsys.readouterr().out == ""
    runtime.precision = "auto"
    assert runtime.suit(of_family(only)) is not None and runtime.bf16 is False
    assert capsys.readouterr().out == f"{only} only supports float32: precision fp32\n"


def test_what_decides_a_gpus_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    found = gpu_facts()
    assert found.keys() == {"gpu", "driver", "cuda"} and found["gpu"] == "a GPU"
    assert found["cuda"] == (torch.version.cuda or "unknown")


def test_the_device_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_name(DeviceParams(device="auto")) == device_name(DeviceParams(device="cpu")) == "cpu"
    with pytest.raises(ModelError, match="this machine does not have the device"):
        device_name(DeviceParams(device="cuda"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert device_name(DeviceParams(device="auto")) == "cuda"
    assert capability(HOST) is None
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    assert capability(torch.device("cuda")) == (9, 0) and in_bf16("auto", torch.device("cuda")) is True


def test_the_kernel_of_segments_needs_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    half = torch.empty(1, 64, dtype=torch.bfloat16)
    assert in_segments(half, half) is False
    on_gpu = SimpleNamespace(is_cuda=True, shape=half.shape, device="cuda")
    monkeypatch.setattr(device, "capability", lambda _: (9, 0))
    assert in_segments(on_gpu, half) is True  # type: ignore[arg-type]
    assert in_segments(on_gpu, half.float()) is False  # type: ignore[arg-type]


def test_free_memory_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "free_memory", lambda: 5.0)
    assert free_bytes(HOST) == 5.0
    for name, value in {"memory_reserved": 7, "memory_allocated": 3}.items():
        monkeypatch.setattr(torch.cuda, name, lambda _, value=value: value)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (10, 100))
    assert free_bytes(torch.device("cuda")) == 14.0
