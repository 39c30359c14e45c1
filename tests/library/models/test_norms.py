"""Norms of one operation: transformers' bits forward, its gradients, gradients of gradients, and fewer bytes saved."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.mixtral.modeling_mixtral import MixtralRMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from posttrain.models.forward.norms import FusedNorm, fuse_norms, has_fused_norms


def two(kind: Any, dtype: torch.dtype, width: int = 48) -> tuple[nn.Module, nn.Module]:
    """A norm of transformers, and the same as one operation."""
    plain = kind(width).to(dtype)
    plain.weight.data.normal_(1, 0.3, generator=torch.Generator().manual_seed(0))
    fused = nn.Sequential(copy.deepcopy(plain))
    fuse_norms(fused)
    return plain, fused[0]


def inputs(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x, grad = (torch.randn(2, 5, 3, 48, generator=generator).to(dtype) for _ in range(2))
    return x.requires_grad_(), grad


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", [LlamaRMSNorm, Qwen3RMSNorm, MixtralRMSNorm])
def test_a_fused_norm_gives_the_bits_of_transformers(kind: Any, dtype: torch.dtype) -> None:
    plain, fused = two(kind, dtype)
    assert isinstance(fused, FusedNorm) and isinstance(fused, kind) and type(fused).__name__ == kind.__name__
    x, _ = inputs(dtype)
    assert torch.equal(plain(x), fused(x)) and fused(x).dtype == dtype


@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-6), (torch.bfloat16, 2e-2)])
def test_its_gradients_are_those_of_transformers(dtype: torch.dtype, error: float) -> None:
    exact, fused = two(LlamaRMSNorm, torch.float32)[0], two(LlamaRMSNorm, dtype)[1]
    exact.weight.data = fused.weight.data.float()
    x, grad = inputs(dtype)
    wide = x.detach().float().requires_grad_()
    expected = torch.autograd.grad(exact(wide), (wide, exact.weight), grad.float())
    found = torch.autograd.grad(fused(x), (x, fused.weight), grad)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.dtype == dtype
        assert (mine.float() - theirs).abs().max() <= error * theirs.abs().max()


def test_its_gradient_has_a_gradient() -> None:
    plain, fused = two(LlamaRMSNorm, torch.float32)
    x, grad = inputs(torch.float32)

    def second(norm: nn.Module) -> tuple[Tensor, ...]:
        first = torch.autograd.grad(norm(x), (x, norm.weight), grad, create_graph=True)
        return torch.autograd.grad(sum(part.square().sum() for part in first), (x, norm.weight))

    for mine, theirs in zip(second(fused), second(plain), strict=True):
        assert (mine - theirs).abs().max() <= 1e-5 * theirs.abs().max()


def test_a_frozen_weight_gets_no_gradient_and_copies_are_of_their_own() -> None:
    _, fused = two(LlamaRMSNorm, torch.float32)
    fused.weight.requires_grad_(requires_grad=False)
    x, grad = inputs(torch.float32)
    fused(x).backward(grad)
    assert fused.weight.grad is None and x.grad is not None
    other = copy.deepcopy(fused)
    other.weight.data.zero_()
    assert not torch.equal(other(x), fused(x)) and [*other.state_dict()] == ["weight"]


def test_other_norms_stay_as_they_are() -> None:
    class LlamaRMSNorm2(LlamaRMSNorm):
        """Somebody's own."""

    model = nn.Sequential(GemmaRMSNorm(8), nn.LayerNorm(8), LlamaRMSNorm2(8))
    fuse_norms(model)
    assert not has_fused_norms(model) and [type(part) for part in model] == [GemmaRMSNorm, nn.LayerNorm, LlamaRMSNorm2]


def test_it_saves_its_input_alone() -> None:
    def saved(norm: nn.Module) -> int:
        kept: dict[int, int] = {}

        def keep(part: Tensor) -> Tensor:
            kept[part.untyped_storage()._cdata] = part.nbytes
            return part

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda part: part):
            norm(x).sum()
        return sum(kept.values())

    x, _ = inputs(torch.float32)
    plain, fused = (saved(norm) for norm in two(LlamaRMSNorm, torch.float32))
    assert fused - plain < -0.9 * x.nbytes
