"""Liger's operators on the second device: plain formulas, which refuse what the kernels would misread.

A module `liger_kernel` takes the package's place, installed or not, since Triton's kernels need a GPU. The package's
own kernels run in Triton's interpreter in tests/library/models/test_kernels.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

LLAMA = 0


def _rows(*parts: Tensor) -> None:
    """Refuse what a kernel would read wrongly: rows that do not follow each other."""
    for part in parts:
        if not part.is_cuda or not part.is_contiguous():
            raise RuntimeError("a kernel reads tensors of the device whose rows follow each other")


def _norm(x: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    scale = (x.float().square().mean(-1) + epsilon).rsqrt()
    return (x.float() * scale[:, None]).to(x.dtype) * weight, scale


def _norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor, scale: Tensor, other: Tensor | None, *, weighed: bool
) -> tuple[Tensor, Tensor]:
    unit = x.float() * scale[:, None]
    slope = grad.float() * weight.float()
    of_weight = (grad.float() * unit).sum(0).to(weight.dtype) if weighed else weight.new_empty(0)
    of_x = (slope - unit * (slope * unit).mean(1, keepdim=True)) * scale[:, None]
    return (of_x if other is None else of_x + other.float()).to(x.dtype), of_weight


def _turned(part: Tensor, cos: Tensor, sin: Tensor, way: float) -> Tensor:
    first, second = part.float().chunk(2, dim=-1)
    turned = torch.cat([-second, first], dim=-1) * way
    return (part.float() * cos.float()[:, None] + turned * sin.float()[:, None]).to(part.dtype)


def _swiglu(both: Tensor) -> Tensor:
    gate, up = both.chunk(2, dim=1)
    return torch.nn.functional.silu(gate.float()).to(up.dtype) * up


def _swiglu_backward(both: Tensor, grad: Tensor) -> Tensor:
    gate, up = (part.float() for part in both.chunk(2, dim=1))
    sigmoid = gate.sigmoid()
    slopes = grad.float() * up * sigmoid * (1 + gate * (1 - sigmoid)), grad.float() * gate * sigmoid
    return torch.cat(slopes, dim=1).to(both.dtype)


def define(library: torch.library.Library, counted: Callable[[str, Callable[..., Any]], Callable[..., Any]]) -> None:
    """Define one operator for each kernel, as one that the device counts once."""
    kernels: dict[str, Callable[..., Any]] = {
        "norm(Tensor x, Tensor w, float e) -> (Tensor, Tensor)": _norm,
        "add_norm(Tensor x, Tensor r, Tensor w, float e) -> (Tensor, Tensor, Tensor)": _add_norm,
        "norm_backward(Tensor(a!) g, Tensor x, Tensor w, Tensor s, bool weighed) -> Tensor": _norm_backward_,
        "add_norm_backward(Tensor(a!) g, Tensor o, Tensor x, Tensor w, Tensor s, bool weighed) -> Tensor": (
            _add_norm_backward_
        ),
        "rotate(Tensor(a!) q, Tensor(b!) k, Tensor cos, Tensor sin, float way) -> ()": _rotate_,
        "swiglu(Tensor both) -> Tensor": _swiglu,
        "swiglu_backward(Tensor both, Tensor g) -> Tensor": _swiglu_backward,
        "nll(Tensor(a!) z, Tensor target) -> Tensor": _nll_,
    }
    for schema, kernel in kernels.items():
        library.define(schema)
        name = schema.partition("(")[0]
        library.impl(name, counted(f"liger::{name}", kernel), "CUDA")
    _install()


def _add_norm(x: Tensor, residual: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
    total = x + residual
    return *_norm(total, weight, epsilon), total


def _norm_backward_(grad: Tensor, x: Tensor, weight: Tensor, scale: Tensor, weighed: bool) -> Tensor:
    of_x, of_weight = _norm_backward(grad, x, weight, scale, None, weighed=weighed)
    grad.copy_(of_x)
    return of_weight


def _add_norm_backward_(
    grad: Tensor, other: Tensor, x: Tensor, weight: Tensor, scale: Tensor, weighed: bool
) -> Tensor:  # fmt: skip
    of_x, of_weight = _norm_backward(grad, x, weight, scale, other, weighed=weighed)
    grad.copy_(of_x)
    return of_weight


def _rotate_(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, way: float) -> None:
    for part in (query, key):
        part.copy_(_turned(part, cos, sin, way))


def _nll_(logits: Tensor, target: Tensor) -> Tensor:
    logp = logits.log_softmax(1)
    found = -logp.gather(1, target[:, None]).squeeze(1)
    logits.copy_(logp.exp() - torch.nn.functional.one_hot(target, logits.shape[1]))
    return found


class _CrossEntropy:
    """The kernel that overwrites logits by the gradient of their loss; called with a grid of its rows."""

    def __getitem__(self, grid: tuple[int]) -> Callable[..., None]:
        def launch(X_ptr: Tensor, Y_ptr: Tensor, loss_ptr: Tensor, **how: Any) -> None:
            rows, vocabulary = X_ptr.shape
            assert (grid, how["n_cols"], how["X_stride"]) == ((rows,), vocabulary, X_ptr.stride(0))
            assert how["reduction"] == "none" and how["HAS_GRADIENTS"] and how["weight_ptr"] is how["softcap"] is None
            assert not (how["HAS_WEIGHT"] or how["HAS_SOFTCAPPING"] or how["label_smoothing"] or how["RETURN_Z_LOSS"])
            _rows(X_ptr, Y_ptr, loss_ptr)
            loss_ptr.copy_(torch.ops.liger.nll(X_ptr, Y_ptr))

        return launch


class _Operators(ModuleType):
    """What `liger_kernel.ops` offers, with the package's arguments and results (0.8.5)."""

    @staticmethod
    def rms_norm_forward(
        x: Tensor, w: Tensor, eps: float, offset: float, casting: int, row_mode: Any
    ) -> tuple[Any, ...]:
        assert (offset, casting, row_mode) == (0.0, LLAMA, None)
        _rows(x, w)
        out, scale = torch.ops.liger.norm(x, w, eps)
        return out, x, scale, 128, 4, casting

    @staticmethod
    def rms_norm_backward(
        grad: Tensor, x: Tensor, w: Tensor, scale: Tensor, offset: float, casting: int, size: int, warps: int,
        in_place: bool, row_mode: Any, needs: bool,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        assert (offset, casting, row_mode, in_place) == (0.0, LLAMA, None, True)
        _rows(grad, x, w, scale)
        of_weight = torch.ops.liger.norm_backward(grad, x, w, scale, needs)
        return grad, of_weight if needs else None

    @staticmethod
    def fused_add_rms_norm_forward(x: Tensor, r: Tensor, w: Tensor, eps: float, offset: float, casting: int) -> Any:
        assert (offset, casting) == (0.0, LLAMA)
        _rows(x, r, w)
        out, scale, total = torch.ops.liger.add_norm(x, r, w, eps)
        return out, total, scale, 128, 4, 2, casting

    @staticmethod
    def fused_add_rms_norm_backward(
        grad: Tensor, other: Tensor, total: Tensor, w: Tensor, scale: Tensor, offset: float, casting: int, size: int,
        warps: int, stages: int, in_place: bool, needs: bool,
    ) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
        assert (offset, casting, in_place) == (0.0, LLAMA, True)
        _rows(grad, other, total, w, scale)
        of_weight = torch.ops.liger.add_norm_backward(grad, other, total, w, scale, needs)
        return grad, grad, of_weight if needs else None

    @staticmethod
    def rope_forward(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
        _turn(query, key, cos, sin, 1.0)
        return query, key, cos, sin

    @staticmethod
    def rope_backward(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        _turn(query, key, cos, sin, -1.0)
        return query, key

    @staticmethod
    def swiglu_fused_gate_up_forward(both: Tensor) -> tuple[Tensor, Tensor]:
        _rows(both)
        return both, torch.ops.liger.swiglu(both)

    @staticmethod
    def swiglu_fused_gate_up_backward(both: Tensor, grad: Tensor) -> Any:
        _rows(both, grad)
        return torch.ops.liger.swiglu_backward(both, grad)


def _turn(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, way: float) -> None:
    """Turn [1, H, N, D] tensors in place; the kernel would copy others first."""
    query, key = query.transpose(1, 2), key.transpose(1, 2)
    _rows(query, key, cos, sin)
    torch.ops.liger.rotate(query[0], key[0], cos[0], sin[0], way)


def _install() -> None:
    package, operators = ModuleType("liger_kernel"), _Operators("liger_kernel.ops")
    package.ops = operators  # type: ignore[attr-defined]
    operators.liger_cross_entropy_kernel = _CrossEntropy()  # type: ignore[attr-defined]
    operators.calculate_settings = lambda size: (size, 4)  # type: ignore[attr-defined]
    for name in ("cross_entropy", "fused_add_rms_norm", "rms_norm", "rope", "swiglu", "utils"):
        setattr(operators, name, operators)
    sys.modules |= {"liger_kernel": package, "liger_kernel.ops": operators}
