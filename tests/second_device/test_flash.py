"""Which FlashAttention each call gets, and calls that are cut: the same outputs and gradients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import register_flash_attention_impl
from torch.nn.attention._registry import _FLASH_ATTENTION_IMPLS
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from posttrain.measure.record import noted
from posttrain.models.device import DeviceParams, Runtime, repeatable
from posttrain.models.files.store import new_model
from posttrain.models.forward import flash
from posttrain.models.forward.varlen import attend_segments, segments_of, split_of
from posttrain.models.master_weights import frozen_on
from posttrain.rollout import token_rows
from posttrain.sampling.sampler import SamplingParams
from posttrain.text.packing import PackedRows, pack
from posttrain.text.stops import Stops
from tests.library.models.families import EVERY, SHAPE
from tests.library.models.tiny import random_rows, sample
from tests.second_device import flash as kernels

CUDA = torch.device("cuda")
SHARED = [[1] * 20, [1] * 20, [2] * 3, [3] * 200]
ROWS = {
    "alone": ([[1], [2], [3], [4], [5]], [[1] * 1500, [2] * 7, [3] * 130, [4], [5] * 129]),
    "shared prompts": (SHARED, [[1] * 5, [2] * 900, [3] * 64, [4] * 30]),
}


class Kernel:
    """FlashAttention 4 as torch would register it: the second device's kernel, which counts, and refuses pages."""

    def __init__(self, factor: float = 1.0) -> None:
        self.calls: list[str] = []
        self._factor = factor

    def register(self) -> Any:
        library = torch.library.Library("aten", "IMPL")

        def forward(*args: Any, **named: Any) -> Any:
            self.calls.append("forward")
            if named.get("block_table") is not None:
                raise RuntimeError("paged KV (block_table) not supported on SM 90")
            out, *others = kernels.forward(*args, **named)
            return out * self._factor, *others

        def backward(*args: Any, **named: Any) -> Any:
            self.calls.append("backward")
            return kernels.backward(*args, **named)

        library.impl("_flash_attention_forward", forward, "CUDA", allow_override=True)
        library.impl("_flash_attention_backward", backward, "CUDA", allow_override=True)
        return _Handle(library)


class _Handle:
    def __init__(self, library: Any) -> None:
        self._library = library

    def remove(self) -> None:
        self._library._destroy()


@contextmanager
def installed(kernel: Kernel) -> Iterator[Kernel]:
    """Offer a kernel as FlashAttention 4 inside."""
    before = dict(_FLASH_ATTENTION_IMPLS)
    register_flash_attention_impl("FA4", register_fn=kernel.register)
    flash.newest.cache_clear()
    try:
        yield kernel
    finally:
        flash.use_own()
        flash.newest.cache_clear()
        _FLASH_ATTENTION_IMPLS.clear()
        _FLASH_ATTENTION_IMPLS.update(before)


def inputs(packed: PackedRows, heads: int = 16) -> list[Tensor]:
    draw, tokens = torch.Generator().manual_seed(0), packed.ids_N.numel()
    made = [torch.randn(tokens, count, 8, generator=draw) for count in (heads, heads // 2, heads // 2)]
    return [part.to(CUDA, torch.bfloat16).requires_grad_() for part in made]


def attended(packed: PackedRows, *, decodes: bool = False) -> list[Tensor]:
    """The output and the gradients."""
    given = inputs(packed)
    out = attend_segments(*given, segments_of(packed), 0.3, decodes=decodes)  # type: ignore[misc]
    with repeatable():
        return [out.detach(), *torch.autograd.grad(out, given, torch.ones_like(out))]


@pytest.mark.parametrize("kind", ROWS)
def test_a_cut_call_gives_the_outputs_and_gradients_of_one_call(kind: str) -> None:
    packed = pack(token_rows(*ROWS[kind])).to(CUDA)
    Runtime(DeviceParams(device="cuda"))
    try:
        segments = segments_of(packed)
        assert split_of(segments, inputs(packed)[0]) is not None
        cut = attended(packed)
        whole = attended(packed, decodes=True)
    finally:
        torch.use_deterministic_algorithms(mode=False)
    assert torch.equal(cut[0], whole[0])
    for found, expected in zip(cut, whole, strict=True):
        assert torch.allclose(found.float(), expected.float(), rtol=1e-2, atol=1e-2)
    assert split_of(replace(segments, split={}), inputs(packed)[0]) is None, "without determinism nothing is serial"


def test_training_uses_the_newest_kernel_and_decoding_torchs_own() -> None:
    packed = pack(token_rows(*ROWS["alone"])).to(CUDA)
    expected = attended(packed, decodes=True)
    with installed(Kernel()) as kernel:
        found = attended(packed)
        assert kernel.calls[-2:] == ["forward", "backward"] and noted("attention") == "FlashAttention 4"
        checked = len(kernel.calls)
        attended(packed, decodes=True)
        assert len(kernel.calls) == checked
        attended(packed)
        assert len(kernel.calls) == checked + 2, "the check runs once"
    assert torch.equal(found[0], expected[0])
    attended(packed)
    assert noted("attention") == "FlashAttention 2"


def test_rows_over_pages_are_drawn_while_the_newest_kernel_trains() -> None:
    """It refuses pages, as FlashAttention 4 does on Hopper."""
    runtime = Runtime(DeviceParams(device="cuda"))
    config = CONFIG_MAPPING["qwen3"](**{**SHAPE, **EVERY["qwen3"]})
    policy = frozen_on(new_model(config, 0), runtime)
    prompts = random_rows(6, seed=1)[0]

    def drawn() -> Any:
        params = SamplingParams(max_tokens=6, rows=6)
        return sample(policy, prompts, [*"abcdef"], n=1, params=params, seed=0, stop=Stops((), str), device=runtime)

    try:
        expected = drawn().ids
        with installed(Kernel()) as kernel:
            attended(pack(token_rows(*ROWS["alone"])).to(CUDA))
            assert kernel.calls
            assert drawn().ids == expected
    finally:
        torch.use_deterministic_algorithms(mode=False)


def test_a_kernel_with_other_values_is_not_used(capsys: pytest.CaptureFixture[str]) -> None:
    packed = pack(token_rows(*ROWS["alone"])).to(CUDA)
    expected = attended(packed)
    with installed(Kernel(factor=1.1)):
        found = attended(packed)
        assert noted("attention") == "FlashAttention 2"
    assert "FlashAttention 4 is not used for 16 heads of 8 (it computes different values)" in capsys.readouterr().out
    assert torch.equal(found[0], expected[0])
