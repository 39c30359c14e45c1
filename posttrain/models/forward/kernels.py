"""Norms, rotary positions, SwiGLU and softmax as one kernel each: Liger's on CUDA, the plain formula elsewhere.

    norm:   y = x / rms(x) * w               add_norm: the same for x + residual
    rotate: q cos + half(q) sin              half([a, b]) = [-b, a]; backwards with -sin
    swiglu: silu(g) u                        g and u: the halves of one row
    nll_:   logsumexp(z) - z[target]         z becomes its gradient, softmax(z) - 1[target]

Liger (the extra `kernels`) sums nothing by atomic additions, so the same GPU gives the same bits. The backward
functions overwrite the gradient that they are given.
"""

from __future__ import annotations

import importlib.metadata
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from posttrain.models.device import unsorted

LLAMA = 0
"""Liger's number for Llama's norm: the scale in float32, the product with the weight in the input's dtype."""
FUNCTIONS = (
    "calculate_settings",
    "fused_add_rms_norm_backward",
    "fused_add_rms_norm_forward",
    "liger_cross_entropy_kernel",
    "rms_norm_backward",
    "rms_norm_forward",
    "rope_backward",
    "rope_forward",
    "swiglu_fused_gate_up_backward",
    "swiglu_fused_gate_up_forward",
)
"""The functions of Liger that are called here."""
IN_ONE: bool | None = None
"""True if Liger's kernels run; None: on CUDA only. Triton's interpreter runs them on a CPU too."""
LARGEST_BLOCK = 2**15
"""The numbers of a row that Liger's cross entropy holds at a time. Its own function waits for the device; the kernel
is called directly."""
OFFSET = 0.0
"""The number that Liger adds to a norm's weight: 0 in these families."""


@cache
def liger() -> Any | None:
    """Return Liger's functions; None if the package is not installed."""
    try:
        from liger_kernel.ops import cross_entropy, fused_add_rms_norm, rms_norm, rope, swiglu, utils
    except ImportError:
        return None
    parts = (cross_entropy, fused_add_rms_norm, rms_norm, rope, swiglu, utils)
    return SimpleNamespace(**{name: getattr(part, name) for part in parts for name in FUNCTIONS if hasattr(part, name)})


def liger_version() -> str:
    """Return the version of the installed package."""
    try:
        return importlib.metadata.version("liger-kernel")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def norm(x_RD: Tensor, weight_D: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Return the norm of each row, and 1 / rms [R]."""
    if _in_one(x_RD):
        results: tuple[Any, ...] = _ops().rms_norm_forward(x_RD, weight_D, epsilon, OFFSET, LLAMA, None)
        return results[0], results[2]
    scale_R = (x_RD.float().square().mean(-1) + epsilon).rsqrt()
    return (x_RD.float() * scale_R[:, None]).to(x_RD.dtype) * weight_D, scale_R


def norm_backward(
    grad_RD: Tensor, x_RD: Tensor, weight_D: Tensor, scale_R: Tensor, *, weighed: bool
) -> tuple[Tensor, Tensor | None]:
    """Return the gradients with respect to x, in the memory of `grad`, and to the weight if `weighed`."""
    if _in_one(x_RD):
        size, warps = _settings(x_RD)
        results: tuple[Tensor, Tensor | None] = _ops().rms_norm_backward(
            grad_RD, x_RD, weight_D, scale_R, OFFSET, LLAMA, size, warps, True, None, weighed
        )
        return results
    return _plain_norm_backward(grad_RD, None, x_RD, weight_D, scale_R, weighed=weighed)


def add_norm(x_RD: Tensor, residual_RD: Tensor, weight_D: Tensor, epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the norm of each row of x + residual, 1 / rms [R], and x + residual."""
    if _in_one(x_RD):
        results: tuple[Any, ...] = _ops().fused_add_rms_norm_forward(
            x_RD, residual_RD, weight_D, epsilon, OFFSET, LLAMA
        )
        return results[0], results[2], results[1]
    total_RD = x_RD + residual_RD
    return *norm(total_RD, weight_D, epsilon), total_RD


def add_norm_backward(
    grad_RD: Tensor, grad_sum_RD: Tensor, sum_RD: Tensor, weight_D: Tensor, scale_R: Tensor, *, weighed: bool
) -> tuple[Tensor, Tensor | None]:
    """Return the gradients with respect to the sum, in the memory of `grad`, and to the weight if `weighed`.

    `grad_sum` is the sum's gradient from its other uses.
    """
    if _in_one(sum_RD):
        size, warps = _settings(sum_RD)
        results: tuple[Tensor, Tensor, Tensor | None] = _ops().fused_add_rms_norm_backward(
            grad_RD, grad_sum_RD, sum_RD, weight_D, scale_R, OFFSET, LLAMA, size, warps, 2, True, weighed
        )
        return results[0], results[2]
    return _plain_norm_backward(grad_RD, grad_sum_RD, sum_RD, weight_D, scale_R, weighed=weighed)


def rotate_(query_NHD: Tensor, key_NHD: Tensor, cos_ND: Tensor, sin_ND: Tensor, *, back: bool = False) -> None:
    """Apply the rotary positions in place, or their inverse."""
    if _in_one(query_NHD):
        ops = _ops()
        turn = ops.rope_backward if back else ops.rope_forward
        turn(query_NHD[None].transpose(1, 2), key_NHD[None].transpose(1, 2), cos_ND[None], sin_ND[None])
        return
    cos, sin = (part.float()[:, None] for part in (cos_ND, -sin_ND if back else sin_ND))
    for part in (query_NHD, key_NHD):
        wide = part.float()
        first, second = wide.chunk(2, dim=-1)
        part.copy_(wide * cos + torch.cat([-second, first], dim=-1) * sin)


def swiglu(both_R2D: Tensor) -> Tensor:
    """Return silu(gate) up of rows that have the gate's numbers first."""
    if _in_one(both_R2D):
        out: Tensor = _ops().swiglu_fused_gate_up_forward(both_R2D)[1]
        return out
    gate, up = both_R2D.chunk(2, dim=1)
    return torch.nn.functional.silu(gate.float()).to(up.dtype) * up


def swiglu_backward(grad_RD: Tensor, both_R2D: Tensor) -> Tensor:
    """Return the gradient with respect to both halves."""
    if _in_one(both_R2D):
        gradient: Tensor = _ops().swiglu_fused_gate_up_backward(both_R2D, grad_RD)
        return gradient
    gate, up = (part.float() for part in both_R2D.chunk(2, dim=1))
    grad, sigmoid = grad_RD.float(), gate.sigmoid()
    of_gate = grad * up * sigmoid * (1 + gate * (1 - sigmoid))
    return torch.cat([of_gate, grad * gate * sigmoid], dim=1).to(both_R2D.dtype)


def nll_(logits_MV: Tensor, target_M: Tensor) -> Tensor:
    """Return -log softmax(logits)[target] of each row, and replace the logits by its gradient."""
    if not _in_one(logits_MV):
        logp_MV = logits_MV.log_softmax(1)
        nll_M = -logp_MV.gather(1, target_M[:, None]).squeeze(1)
        with unsorted():
            torch.exp(logp_MV, out=logits_MV).scatter_add_(1, target_M[:, None], -torch.ones_like(nll_M)[:, None])
        return nll_M
    rows, vocabulary = logits_MV.shape
    nll_M = torch.empty(rows, dtype=logits_MV.dtype, device=logits_MV.device)
    _ops().liger_cross_entropy_kernel[(rows,)](
        X_ptr=logits_MV, X_stride=logits_MV.stride(0), Y_ptr=target_M, Y_stride=target_M.stride(0), weight_ptr=None,
        loss_ptr=nll_M, z_loss_ptr=None, loss_stride=1, token_accuracy_ptr=None, token_accuracy_stride=0,
        predicted_tokens_ptr=None, predicted_tokens_stride=0, n_cols=vocabulary, n_non_ignore=rows,
        sum_non_ignore_weight=rows, weight_sum=0.0, ignore_index=-1, lse_square_scale=0.0, label_smoothing=0.0,
        reduction="none", softcap=None, RETURN_Z_LOSS=False, RETURN_TOKEN_ACCURACY=False,
        RETURN_PREDICTED_TOKENS=False, BLOCK_SIZE=min(LARGEST_BLOCK, 1 << (vocabulary - 1).bit_length()),
        HAS_WEIGHT=False, HAS_SOFTCAPPING=False, HAS_GRADIENTS=True, num_warps=32,
    )  # fmt: skip
    return nll_M


def runs(part: Tensor) -> bool:
    """Tell whether Liger's kernels run on this tensor. If not, other code is faster than the plain formulas."""
    return _in_one(part) and liger() is not None


def _plain_norm_backward(
    grad: Tensor, other: Tensor | None, x: Tensor, weight: Tensor, scale: Tensor, *, weighed: bool
) -> tuple[Tensor, Tensor | None]:
    wide, unit = grad.float(), x.float() * scale[:, None]
    of_weight = (wide * unit).sum(0).to(weight.dtype) if weighed else None
    slope = wide * weight.float()
    of_x = (slope - unit * (slope * unit).mean(1, keepdim=True)) * scale[:, None]
    return grad.copy_(of_x if other is None else of_x + other.float()), of_weight


def _in_one(part: Tensor) -> bool:
    return part.is_cuda if IN_ONE is None else IN_ONE


def _ops() -> Any:
    functions = liger()
    assert functions is not None, "check `liger` first"
    return functions


def _settings(x_RD: Tensor) -> tuple[int, int]:
    """Return the block size and the number of warps that Liger's forward function chose for such rows."""
    size, warps = _ops().calculate_settings(x_RD.shape[1])
    return int(size), int(warps)
