"""Choose the FlashAttention of a pass: 4 or 3 if installed and if it passes a check on this GPU, else torch's kernel.

torch replaces the kernels of the whole process. Training uses the newest; decoding uses torch's own, because
FlashAttention 4 does not read keys in pages on Hopper. Each call says which one it needs.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from posttrain.measure.record import note, noted

NAMES = {"FA4": "FlashAttention 4", "FA3": "FlashAttention 3"}
"""torch's names of the kernels that can replace its own, the preferred first."""
OWN = "FlashAttention 2"
ROWS, WINDOW = (300, 77), 64
"""The check's rows: more and fewer tokens than a block has. Its sliding window."""
TOLERANCE = 2e-2
"""Tolerance between two kernels in bf16, relative to the largest number."""
FAULTS = (ArithmeticError, AssertionError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError)
"""Errors of kernels that do not support a GPU or a head."""


class Heads(NamedTuple):
    """The properties that a kernel is compiled for."""

    queries: int
    keys: int
    size: int
    dtype: torch.dtype
    device: torch.device


def use_newest(query_NHD: Tensor, key_NHD: Tensor) -> str:
    """Use the newest kernel that supports these heads from now on. Return its name, and record it."""
    return use_newest_for(
        Heads(query_NHD.shape[1], key_NHD.shape[1], query_NHD.shape[2], query_NHD.dtype, query_NHD.device)
    )


def use_newest_for(heads: Heads) -> str:
    """Choose the kernel in the same way for heads that are known before a pass."""
    kind = newest(heads)
    _activate(kind)
    name = OWN if kind is None else NAMES[kind]
    if torch.is_grad_enabled() and noted("attention") != name:
        note(attention=name)
    return name


def use_own() -> None:
    """Use torch's own kernel from now on."""
    _activate(None)


@cache
def newest(heads: Heads) -> str | None:
    """Return the first kernel that passes the check; None for torch's kernel."""
    for kind, name in NAMES.items():
        try:
            _activate(kind)
        except (ImportError, *FAULTS) as error:
            if not isinstance(error, ImportError):
                print(f"{name} cannot be used ({_short(error)}): {OWN} runs", flush=True)
            continue
        fault = _fault(kind, heads)
        if fault is None:
            return kind
        print(f"{name} is not used for {heads.queries} heads of {heads.size} ({fault}): {OWN} runs", flush=True)
    return None


def _activate(kind: str | None) -> None:
    """Put a kernel into torch, or take it out again."""
    try:
        from torch.nn.attention import (
            activate_flash_attention_impl,
            current_flash_attention_impl,
            restore_flash_attention_impl,
        )
    except ImportError:  # an older torch
        if kind is not None:
            raise
        return
    if current_flash_attention_impl() == kind:
        return
    if kind is None:
        restore_flash_attention_impl()
    else:
        activate_flash_attention_impl(kind)


def _fault(kind: str, heads: Heads) -> str | None:
    """Return what is wrong with a kernel's outputs or gradients; None if nothing is."""
    deterministic = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(deterministic)
    try:
        for window in (-1, WINDOW):
            _activate(None)
            expected = _results(heads, window)
            _activate(kind)
            results, again = _results(heads, window), _results(heads, window)
            for one, other in zip(results, expected, strict=True):
                if not float((one - other).abs().max()) <= TOLERANCE * float(other.abs().max()):
                    return "it computes different values"
            if deterministic and not all(map(torch.equal, results, again)):
                return "it is not deterministic"
    except FAULTS as error:
        return _short(error)
    finally:
        torch.use_deterministic_algorithms(deterministic, warn_only=warns)
    return None


def _results(heads: Heads, window: int) -> list[Tensor]:
    """Return the output of two rows and its gradients, in float32."""
    from torch.nn.attention.varlen import varlen_attn

    draw, tokens = torch.Generator().manual_seed(0), sum(ROWS)
    counts = (heads.queries, heads.keys, heads.keys, heads.queries)
    drawn: list[Any] = [
        torch.randn(tokens, count, heads.size, generator=draw).to(heads.device, heads.dtype) for count in counts
    ]
    ends = torch.tensor([0, ROWS[0], tokens], dtype=torch.int32).to(heads.device)
    with torch.enable_grad():
        inputs = query, key, value = tuple(part.requires_grad_() for part in drawn[:3])
        out: Any = varlen_attn(
            query, key, value, ends, ends, max(ROWS), max(ROWS), window_size=(window, 0),
            enable_gqa=heads.queries != heads.keys,
        )  # fmt: skip
        grads = torch.autograd.grad(out, inputs, drawn[3])
    return [part.detach().float() for part in (out, *grads)]


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {error!s:.120}"
