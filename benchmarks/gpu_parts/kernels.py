"""Part A: kernels alone that may own the step's unexplained time. Norms, passes over logits, attention backwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from itertools import accumulate, pairwise

import torch
from torch import Tensor
from torch.nn.functional import rms_norm

from benchmarks.gpu_parts.ceilings import COPY, COPY_GB_S, step_tokens
from benchmarks.gpu_parts.figures import Figures, MissingError, Result, limit, predicted
from benchmarks.gpu_parts.sizes import Device, Sizes
from benchmarks.gpu_parts.timing import milliseconds
from benchmarks.speed.case import Shape, batches
from posttrain.models.forward import kernels

BYTES_PER_MS = 1e6
"""Of a rate of 1 GB/s."""
SUSPECT = 3.0
"""More than this many times what bytes alone need makes a kernel the suspect."""
PASSES = ("softmax", "max", "bmm of 1 x V by V x 1")
IN_ONE = "loss and gradient in one kernel"
EPSILON = 1e-6
Norm = Callable[[Tensor, Tensor], Tensor]


def run(figures: Figures, device: Device, sizes: Sizes) -> None:
    """Measure norms, the head's passes and attention's backward pass."""
    tokens, shape = step_tokens(sizes.sft), sizes.sft.shape
    rows = {
        "q": (tokens * shape.heads, shape.head),
        "k": (tokens * (shape.kv_heads or shape.heads), shape.head),
        "a layer": (tokens, shape.width),
    }
    for name, size in rows.items():
        for kind in ("torch", "liger"):
            for backward in (False, True):
                _norm(figures, device, name, size, kind, backward=backward)
    for name in (*PASSES, IN_ONE):
        _over_logits(figures, device, name, (sizes.tile_tokens, shape.vocabulary))
    _attention(figures, device, sizes)


def _copy_rate(figures: Figures) -> float:
    """Return the GB/s that part 0 measured, or those of an H100."""
    return float((figures.found(COPY, "0") or {"gb_s": COPY_GB_S})["gb_s"])


def _norm(figures: Figures, device: Device, name: str, size: tuple[int, int], kind: str, *, backward: bool) -> None:
    moved = (3 if backward else 2) * 2 * size[0] * size[1] / (_copy_rate(figures) * BYTES_PER_MS)
    note = f"bytes alone need {moved:.2g}"
    judge = limit("ms", SUSPECT * moved, "suspect", "no cause", note=note)
    way = "backward" if backward else "forward"
    title = f"RMS norm of {name} {way}, {kind}"
    figures.take(title, partial(_norm_time, device, size, kind, backward=backward), judge)


def _norm_time(device: Device, size: tuple[int, int], kind: str, *, backward: bool) -> Result:
    norm = _torch_norm if kind == "torch" else _liger_norm()
    if kind == "liger" and device == "cpu":
        raise MissingError("Liger's kernels need a GPU")
    x, weight = (
        torch.randn(one, device=device).bfloat16().requires_grad_() for one in (size, size[1:])
    )  # fmt: skip
    if not backward:
        with torch.no_grad():
            return {"ms": milliseconds(lambda: norm(x, weight), device)}
    out, grad = norm(x, weight), torch.randn(size, device=device).bfloat16()
    return {"ms": milliseconds(lambda: torch.autograd.grad(out, (x, weight), grad, retain_graph=True), device)}


def _torch_norm(x: Tensor, weight: Tensor) -> Tensor:
    return rms_norm(x, x.shape[-1:], weight, EPSILON)


def _liger_norm() -> Norm:
    try:
        functional = import_module("liger_kernel.transformers.functional")
    except ImportError as error:
        raise MissingError("liger-kernel is not installed: pip install liger-kernel") from error
    return partial(functional.liger_rms_norm, eps=EPSILON, in_place=False)


def _over_logits(figures: Figures, device: Device, name: str, size: tuple[int, int]) -> None:
    """A pass over float32 logits: softmax reads and writes them, the largest reads one, a product of rows two.

    The kernel that replaces the three reads them twice and writes their gradient.
    """
    passes = {"max": 1, IN_ONE: 3}.get(name, 2)
    moved = passes * 4 * size[0] * size[1] / (_copy_rate(figures) * BYTES_PER_MS)
    most = 0.6 / 0.36 * moved
    judge = limit("ms", most, "suspect", "no cause", note=f"bytes alone need {moved:.2g}")

    def measure() -> Result:
        logits = torch.randn(size, device=device)
        if name == IN_ONE:
            if not kernels.runs(logits):
                raise MissingError("Liger's kernels need a GPU and liger-kernel (the extra `kernels`)")
            target = torch.arange(size[0], device=device) % size[1]
            return {"ms": milliseconds(lambda: kernels.nll_(logits, target), device)}
        p = logits.softmax(1)
        calls: dict[str, Callable[[], object]] = {
            "softmax": lambda: logits.softmax(1),
            "max": lambda: p.max(1, keepdim=True),
        }
        return {"ms": milliseconds(calls.get(name, lambda: torch.bmm(p[:, None], logits[:, :, None])), device)}

    figures.take(f"{name} over a tile of logits", measure, judge)


def _attention(figures: Figures, device: Device, sizes: Sizes) -> None:
    """Compare attention's deterministic backward pass with the free one, and with calls of the longest rows apart."""
    case = [len(row) for item in batches(sizes.sft)[-1] for row in item]
    sets: dict[str, tuple[Sequence[int], float, tuple[int, ...] | None, float]] = {
        "the case's rows": (case, 2.15, sizes.cuts[0], 1.48),
        "rows of one length": (sizes.even, 0.96, None, 0.0),
        "a long row and short ones": (sizes.tail, 6.9, sizes.cuts[1], 1.5),
    }
    time = partial(_backward, device, sizes.sft.shape)
    for name, (lengths, ratio, cut, with_cut) in sets.items():
        title = f"attention backward of {name}"
        free = figures.take(f"{title}, free", partial(time, [lengths], deterministic=False))
        if not free:
            continue
        holds, fails = "verdict 1 holds", "verdict 1 falls: determinism does not make long rows serial"
        _ratio(figures, f"{title}, deterministic / free", free, partial(time, [lengths]), (ratio, holds, fails))
        if cut is not None:
            parts = partial(time, split(lengths, cut))
            said = (with_cut, "cutting helps as predicted", "cutting does not help as predicted")
            _ratio(figures, f"{title}, cut {cut} / free", free, parts, said)
    for kind, name in ((kind, name) for kind in ("FA4", "FA3") for name in sets):
        title, lengths = f"attention backward of {name}", sets[name][0]
        if free := figures.found(f"{title}, free"):
            newer = partial(time, [lengths], kind=kind)
            expected = (0.5, "the newer kernel pays, and has no cliff", "not what its published rates promise")
            _ratio(figures, f"{title}, {kind} deterministic / FA2 free", free, newer, expected, within=0.6)


def _ratio(
    figures: Figures, name: str, free: Result, measure: Callable[[], Result], said: tuple[float, str, str],
    within: float = 0.2,
) -> None:  # fmt: skip
    """Take a time as a share of the free kernel's."""

    def taken() -> Result:
        found = measure()
        return {**found, "ratio": found["ms"] / free["ms"]}

    expected, holds, fails = said
    figures.take(name, taken, predicted("ratio", expected, holds, fails, within=within))


def split(lengths: Sequence[int], cut: Sequence[int]) -> list[list[int]]:
    """Return the rows of each call, the longest first."""
    rows = sorted(lengths, reverse=True)
    return [rows[start:end] for start, end in pairwise((0, *cut, len(rows))) if start < end]


def _backward(
    device: Device, shape: Shape, calls: Sequence[Sequence[int]], *, deterministic: bool = True, kind: str | None = None
) -> Result:
    """Return the milliseconds of the backward passes of several calls, one after the other."""
    from torch.nn.attention.varlen import varlen_attn

    if device == "cpu":
        raise MissingError("torch has attention over rows of any length on CUDA only")
    made = []
    with chosen_flash(kind), strictly(deterministic):
        for lengths in calls:
            ends = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)
            tokens, keys = sum(lengths), shape.kv_heads or shape.heads
            query, key, value = parts = [
                torch.randn(tokens, heads, shape.head, device=device).bfloat16().requires_grad_()
                for heads in (shape.heads, keys, keys)
            ]
            longest = max(lengths)
            out = varlen_attn(
                query, key, value, ends, ends, longest, longest, window_size=(-1, 0), enable_gqa=True
            )  # fmt: skip
            made.append((out, parts, torch.randn_like(query)))

        def backward() -> None:
            for out, parts, grad in made:
                torch.autograd.grad(out, parts, grad, retain_graph=True)

        return {"ms": milliseconds(backward, device)}


@contextmanager
def strictly(deterministic: bool) -> Iterator[None]:  # noqa: FBT001
    """Use only deterministic kernels, or any. torch takes attention's deterministic one only if it does not warn."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(deterministic)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


@contextmanager
def chosen_flash(kind: str | None) -> Iterator[None]:
    """Put another FlashAttention into torch for the time of a block."""
    if kind is None:
        yield
        return
    try:
        from torch.nn.attention import activate_flash_attention_impl, restore_flash_attention_impl

        activate_flash_attention_impl(kind)
    except (ImportError, ValueError) as error:
        raise MissingError(f"{kind} cannot be used: {error}") from error
    try:
        yield
    finally:
        restore_flash_attention_impl()
