"""Norms, rotary positions, SwiGLU and softmax of one kernel: the formulas by autograd, and Liger's interpreted."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb

from posttrain.models.forward import kernels
from tests.workspace import ROOT

LIMITS = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
"""Of the largest number: rounding."""


def drawn(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def same(found: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    assert found.dtype == dtype
    found, expected = found.detach(), expected.detach().float()
    gap, size = float((found.float() - expected).abs().max()), float(expected.abs().max())
    assert gap <= LIMITS[dtype] * size


@pytest.mark.parametrize("dtype", LIMITS)
def test_norms_and_their_gradients_are_those_of_transformers(dtype: torch.dtype) -> None:
    norm = LlamaRMSNorm(16)
    norm.weight.data = 1 + drawn(16, dtype=dtype, seed=9).float() / 3
    x, residual, grad, other = (drawn(7, 16, dtype=dtype, seed=seed) for seed in range(4))
    weight = norm.weight.detach().to(dtype)
    norm.weight.data = weight.float()
    total = (x + residual).float().requires_grad_()
    expected = norm(total)
    (expected * grad.float()).sum().backward()
    out, scale, summed = kernels.add_norm(x, residual, weight, norm.variance_epsilon)
    same(out, expected, dtype)
    assert torch.equal(summed, x + residual)
    again, _ = kernels.norm(summed, weight, norm.variance_epsilon)
    assert torch.equal(again, out)
    of_x, of_weight = kernels.norm_backward(grad.clone(), summed, weight, scale, weighed=True)
    assert total.grad is not None and norm.weight.grad is not None and of_weight is not None
    same(of_x, total.grad, dtype)
    same(of_weight, norm.weight.grad, dtype)
    of_sum, none = kernels.add_norm_backward(grad.clone(), other, summed, weight, scale, weighed=False)
    assert none is None
    same(of_sum, total.grad + other.float(), dtype)


@pytest.mark.parametrize("dtype", LIMITS)
def test_rotary_positions_are_those_of_transformers_and_turn_back(dtype: torch.dtype) -> None:
    query, key = drawn(5, 4, 8, dtype=dtype), drawn(5, 2, 8, dtype=dtype, seed=1)
    angle = drawn(5, 4, dtype=torch.float32, seed=2)
    cos, sin = (torch.cat([part, part], dim=1).to(dtype) for part in (angle.cos(), angle.sin()))
    expected = apply_rotary_pos_emb(query.float(), key.float(), cos.float(), sin.float())
    turned = query.clone(), key.clone()
    kernels.rotate_(*turned, cos, sin)
    for found, other in zip(turned, expected, strict=True):
        same(found, other, dtype)
    kernels.rotate_(*turned, cos, sin, back=True)
    same(turned[0], query, dtype)
    same(turned[1], key, dtype)


@pytest.mark.parametrize("dtype", LIMITS)
def test_swiglu_and_its_gradient_are_those_of_autograd(dtype: torch.dtype) -> None:
    both, grad = drawn(5, 12, dtype=dtype), drawn(5, 6, dtype=dtype, seed=1)
    wide = both.float().requires_grad_()
    gate, up = wide.chunk(2, dim=1)
    expected = torch.nn.functional.silu(gate) * up
    (expected * grad.float()).sum().backward()
    same(kernels.swiglu(both), expected, dtype)
    assert wide.grad is not None
    same(kernels.swiglu_backward(grad, both), wide.grad, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_softmax_is_replaced_by_the_gradient_of_its_loss(dtype: torch.dtype) -> None:
    logits, target = drawn(4, 9, dtype=dtype) * 3, torch.tensor([0, 8, 4, 4])
    wide = logits.clone().requires_grad_()
    expected = torch.nn.functional.cross_entropy(wide, target, reduction="none")
    expected.sum().backward()
    torch.testing.assert_close(kernels.nll_(logits, target), expected.detach())
    torch.testing.assert_close(logits, wide.grad)


INTERPRETED = """
import os
import torch
import triton.language as tl
from liger_kernel.ops import fused_add_rms_norm, rms_norm
from posttrain.models.forward import kernels


class Number(float):
    def to(self, *_):  # the interpreter hands a kernel plain numbers
        return self


for module in (rms_norm, fused_add_rms_norm):
    module.rsqrt = lambda x: tl.rsqrt(x)  # it has no CUDA library, and replaces what `tl` has at the call
draw = torch.Generator().manual_seed(0)
x, residual, grad, other, weight = (torch.randn(*s, generator=draw) for s in [(7, 48)] * 4 + [(48,)])
for dtype, limit in ((torch.float32, 1e-5), (torch.float16, 4e-3)):  # numpy has no bfloat16
    x, residual, grad, other, weight = (part.to(dtype) for part in (x, residual, grad, other, weight))
    query, key, cos, sin = (part.view(7, -1, 8) for part in (x, residual[:, :16].contiguous(), grad, other))
    cos, sin = (torch.cat([part[:, 0, :4]] * 2, dim=1) for part in (cos, sin))
    kinds = {}
    for real in (False, True):
        kernels.IN_ONE = real
        if real:
            kernels.OFFSET = Number(0.0)
        epsilon = Number(1e-6) if real else 1e-6
        out, scale = kernels.norm(x, weight, epsilon)
        added, scales, total = kernels.add_norm(x, residual, weight, epsilon)
        turned = query.clone(), key.clone()
        kernels.rotate_(*turned, cos, sin)
        back = query.clone(), key.clone()
        kernels.rotate_(*back, cos, sin, back=True)
        half = grad[:, :24].contiguous()
        kinds[real] = (
            out, scale, added, scales, total, *turned, *back,
            *kernels.norm_backward(grad.clone(), x, weight, scale, weighed=True),
            kernels.norm_backward(grad.clone(), x, weight, scale, weighed=False)[0],
            kernels.norm_backward(grad.clone(), x, weight.float(), scale, weighed=True)[1],
            *kernels.add_norm_backward(grad.clone(), other, total, weight, scales, weighed=True),
            kernels.swiglu(x), kernels.swiglu_backward(half, x),
        )
        logits, target = 5 * other, torch.tensor([0, 47, 3, 3, 31, 32, 7])
        kinds[real] += (kernels.nll_(logits, target), logits)
    if dtype == torch.float32 and "MANY" in os.environ:  # many short rows have kernels of their own
        many, slopes = (torch.randn(2**15, 4, generator=draw) for _ in range(2))
        for real in (False, True):
            kernels.IN_ONE = real
            out, scale = kernels.norm(many, weight[:4], Number(1e-6))
            slope, of_weight = kernels.norm_backward(slopes.clone(), many, weight[:4], scale, weighed=True)
            kinds[real] += (out, scale, slope, of_weight)
    for place, (found, expected) in enumerate(zip(kinds[True], kinds[False], strict=True)):
        assert found.shape == expected.shape and found.dtype == expected.dtype, (dtype, place)
        gap, size = (found.float() - expected.float()).abs().max(), expected.float().abs().max()
        assert gap <= limit * size, (dtype, place, float(gap), float(size))
"""


@pytest.mark.parametrize("rows", ["FEW", pytest.param("MANY", marks=pytest.mark.slow)])
@pytest.mark.skipif(importlib.util.find_spec("liger_kernel") is None, reason="Liger is not installed (extra kernels)")
def test_ligers_kernels_give_the_plain_formulas_in_tritons_interpreter(rows: str) -> None:
    """The second takes four minutes."""
    environment = {**os.environ, rows: "1", "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error::UserWarning:posttrain", "-c", INTERPRETED]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
