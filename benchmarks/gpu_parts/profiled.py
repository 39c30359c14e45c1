"""Part B: where the steps of SFT and DPO spend the device's time, by kind of kernel and by operator with its bytes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.gpu_parts.figures import Figures, Result, limit, predicted
from benchmarks.gpu_parts.sizes import Device, Sizes
from benchmarks.gpu_parts.timing import elapsed
from benchmarks.gpu_parts.training import Job, switched, timed, train
from benchmarks.speed.case import Case
from benchmarks.speed.meter import Meter

KINDS = {
    "attention": r"flash|fmha|varlen",
    "products": r"gemm|cutlass|nvjet|xmma|splitk|::mm$|::addmm|linear",
    "vector products": r"gemv|dot_kernel|::bmm|vecdot",
    "norms": r"layer_norm|rms_norm|rmsnorm|gradinput|gammabeta",
    "softmax": r"softmax",
    "optimizer": r"multi_tensor|adam|foreach",
    "copies": r"copy|memcpy|memset|fill|::zero_|cat|index|gather|scatter|::clone",
    "reductions": r"reduce|::sum|::max|::amax|::mean",
    "rotary positions and SwiGLU": r"rope|swiglu",
    "fused by a compiler": r"triton",
    "element-wise": r"elementwise|::mul|::add|::neg|::silu|::div|::sub",
}
"""Kind of kernel -> the names of CUDA kernels, and of operators where a CPU runs them. The first match counts."""
UPDATES, WARM = 3, 2
LISTED = 30
"""Operators that are kept, the slowest first."""
ALIASES = frozenset(
    (
        "view",
        "_unsafe_view",
        "reshape",
        "t",
        "transpose",
        "slice",
        "select",
        "detach",
        "expand",
        "unsqueeze",
        "squeeze",
        "alias",
        "as_strided",
        "empty",
        "empty_like",
        "empty_strided",
        "resize_",
        "split",
        "split_with_sizes",
        "chunk",
        "unbind",
        "permute",
    )
)
"""Operators that move no bytes."""


def run(figures: Figures, device: Device, sizes: Sizes) -> None:
    """Profile some steps of each, then count the bytes of one.

    The predictions are for steps without what the library chooses by itself since then.
    """
    del device
    sft, dpo = Job(_short(sizes.sft)), Job(_short(sizes.dpo), pairs=True)
    for name, job, plain in (("sft, plain", sft, True), ("sft", sft, False), ("dpo", dpo, False)):
        steps = figures.take(f"{name}: steps", partial(_profiled, job, plain=plain), _total)
        if not steps:
            continue
        for kind, judge in _JUDGES.items() if plain else ():
            ms = {"ms": steps["kinds"].get(kind, {"ms": 0.0})["ms"]}
            figures.take(f"{name}: {kind}", partial(dict, ms), judge)
        idle = {"ms": max(steps["wall_ms"] - steps["kernels_ms"], 0.0)}
        figures.take(f"{name}: without a kernel", partial(dict, idle), _IDLE)
        if name.startswith("sft"):
            figures.take(f"{name}: bytes of operators", partial(_with_bytes, job, steps, plain=plain), _slowest)


def _short(case: Case) -> Case:
    return replace(case, warm=min(WARM, case.warm), updates=min(UPDATES, case.updates))


_JUDGES = {
    "norms": limit("ms", 30, "norms own the missing time", "norms are no suspect", note="bytes alone need 12"),
    "vector products": limit("ms", 8, "the entropy's product is slow", "no suspect", note="bytes alone need 4"),
    "attention": predicted("ms", 57, "as estimated", "the estimate of attention is wrong", unit="ms"),
    "products": predicted("ms", 71, "as estimated", "products take another share", unit="ms"),
    "optimizer": predicted("ms", 8, "as estimated", "the optimizer takes another share", unit="ms", within=0.4),
}
_IDLE = limit("ms", 10, "the host is a cause: the device waits", "the device is busy")


class ProfiledMeter(Meter):
    """A meter that profiles the updates that count."""

    def __init__(self, warm: int, device: str) -> None:
        super().__init__(warm, device)
        self.profile = profile(activities=activities())

    def update(self) -> None:
        super().update()
        if self._begun == self.warm + 1:
            self.profile.start()

    def end(self) -> None:
        super().end()
        self.profile.stop()


def activities() -> list[ProfilerActivity]:
    """Return what torch's profiler can watch here."""
    return [ProfilerActivity.CPU, *{ProfilerActivity.CUDA} & torch.profiler.supported_activities()]  # type: ignore[no-untyped-call]


def _profiled(job: Job, *, plain: bool) -> Result:
    """Return the kernels of a step, and the time of one without the profiler, which slows the host."""
    with switched() if plain else nullcontext():
        wall, meter = timed(job)["ms"], ProfiledMeter(job.case.warm, job.case.device)
        train(job, meter)
    return {"wall_ms": wall, **summary(meter.profile, job.case.updates)}


def summary(found: Any, steps: int) -> Result:
    """Return the kernels of a step by kind, and its operators with the time of their own kernels."""
    entries = [one for one in found.key_averages() if not one.is_user_annotation and "#" not in one.key]
    kernels = [one for one in entries if one.device_type == DeviceType.CUDA]
    on_device = bool(kernels)

    def ms(entry: Any) -> float:
        return float(entry.self_device_time_total if on_device else entry.self_cpu_time_total) / 1e3 / steps

    kinds: dict[str, dict[str, float]] = {}
    for one in kernels if on_device else [one for one in entries if one.key.startswith("aten::")]:
        kind = kinds.setdefault(kind_of(one.key), {"count": 0.0, "ms": 0.0})
        kind["count"] += one.count / steps
        kind["ms"] += ms(one)
    operators = sorted((one for one in entries if _is_operator(one)), key=ms, reverse=True)
    slowest = sorted(kernels, key=ms, reverse=True)[:LISTED]
    return {
        "kernels_ms": sum(kind["ms"] for kind in kinds.values()),
        "kinds": dict(sorted(kinds.items(), key=lambda pair: -pair[1]["ms"])),
        "operators": {one.key: {"count": one.count / steps, "ms": ms(one)} for one in operators[:LISTED]},
        "kernels": {one.key[:160]: {"count": one.count / steps, "ms": ms(one)} for one in slowest},
    }


def _is_operator(entry: Any) -> bool:
    """Return whether it is an operator that moves bytes, and not a kernel or a part of autograd."""
    space, _, name = entry.key.partition("::")
    return entry.device_type != DeviceType.CUDA and space != "autograd" and bool(name) and name not in ALIASES


def kind_of(name: str) -> str:
    """Return the kind of a kernel or an operator."""
    return next((kind for kind, names in KINDS.items() if re.search(names, name.lower())), "other")


def _total(steps: Result) -> str:
    kinds = ", ".join(f"{kind} {found['ms']:.3g}" for kind, found in steps["kinds"].items())
    return f"{steps['wall_ms']:.4g} ms a step, kernels {steps['kernels_ms']:.4g} ms: {kinds}"


class Bytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The bytes that each operator reads and writes at least: its inputs and outputs once."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.moved: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name
        if name.partition("::")[2] not in ALIASES:
            seen = {id(one): one.nbytes for one in tree_leaves((args, kwargs, out)) if isinstance(one, torch.Tensor)}
            self.moved[name] += sum(seen.values())
        return out


def _with_bytes(job: Job, steps: Result, *, plain: bool) -> Result:
    """Return the slowest operators with the bytes of a step, counted in one more step, and the rate."""
    one = replace(job, case=replace(job.case, warm=0, updates=1))
    with switched() if plain else nullcontext(), Bytes() as counted:
        train(one, Meter(0, job.case.device))
    found = {}
    for name, operator in steps["operators"].items():
        moved = counted.moved.get(name, 0)
        found[name] = {**operator, "bytes": moved, "gb_s": moved / max(operator["ms"], 1e-6) / 1e6}
    return {"operators": found}


def _slowest(figure: Result) -> str:
    first = list(figure["operators"].items())[:6]
    return "; ".join(f"{name} {found['ms']:.3g} ms at {found['gb_s']:.4g} GB/s" for name, found in first)


def profiled_calls(call: Callable[[], object], device: str, count: int) -> Result:
    """Profile some calls. Return the same as for steps, and the time of a call without the profiler."""
    wall = elapsed(call, device, count)
    with profile(activities=activities()) as found:
        elapsed(call, device, count)
    return {"wall_ms": wall, **summary(found, count)}
