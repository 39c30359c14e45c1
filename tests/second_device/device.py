"""A stand-in for a CUDA GPU where there is none: import it before torch, and device `cuda` is there.

Tensors of that device have real values: their memory is the host's, and every operator runs torch's CPU kernel on it
(device.cpp). Code that asks for `device.type == "cuda"` takes the branch that it takes on a GPU, and what a GPU refuses
fails: tensors of two devices in one operator, a host that reads the device during a capture, and the arguments that
FlashAttention, products with `out_dtype` and the fused norm refuse. Memory is NaN until it is written.

It does not show: time, CUDA's rounding, races of streams, NCCL, atomic additions other than FlashAttention's, Triton,
vLLM, cuBLAS, or how torch's allocator cuts memory. Its CUDA has one stream, which is always done.

    python -m pytest -p tests.second_device.device tests/second_device -n 0      (make test-second-device)
    SECOND_DEVICE_CAPABILITY=7.5      an older GPU
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from tests.second_device import build

lib = build.load()

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from tests.second_device import flash, graphs, liger  # noqa: E402
from tests.second_device.waiting import WATCH, unwatched, waits  # noqa: E402

__all__ = ["calls", "waits"]
TOTAL = 140 * 2**30
NAME = "second device"
CAPABILITY = tuple(int(part) for part in os.environ.get("SECOND_DEVICE_CAPABILITY", "9.0").split("."))

lib.on_wait(WATCH.waited)
lib.set_total(TOTAL)


@contextlib.contextmanager
def calls() -> Iterator[dict[str, int]]:
    """How often each operator ran on the device inside."""
    lib.clear()
    lib.count(True)
    found: dict[str, int] = {}
    try:
        yield found
    finally:
        lib.count(False)
        found |= lib.counts()


class _Stream:
    """A stream that is always done."""

    device_type, stream_id, cuda_stream, priority = 1, 0, 0, 0

    def __new__(cls, *_: Any, **__: Any) -> _Stream:
        return object.__new__(cls)

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        self.device = torch.device("cuda", lib.current_device())
        self.device_index = self.device.index

    def wait_stream(self, stream: Any) -> None:
        """Wait for nothing."""

    def wait_event(self, event: Any) -> None:
        """Wait for nothing."""

    def synchronize(self) -> None:
        WATCH.waited("stream.synchronize")

    def query(self) -> bool:
        return True

    def record_event(self, event: Any = None) -> Any:
        return event or _Event()

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Stream)

    def __hash__(self) -> int:
        return 0


class _Event:
    """An event that has happened."""

    def __new__(cls, *_: Any, **__: Any) -> _Event:
        return object.__new__(cls)

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def record(self, stream: Any = None) -> None:
        """Happen."""

    def wait(self, stream: Any = None) -> None:
        """Wait for nothing."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        WATCH.waited("event.synchronize")

    def elapsed_time(self, other: Any) -> float:
        return 0.0


def _properties(device: Any = None) -> SimpleNamespace:
    return SimpleNamespace(
        name=NAME, total_memory=TOTAL, major=CAPABILITY[0], minor=CAPABILITY[1], multi_processor_count=132,
        gcnArchName="", warp_size=32, regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048,
        shared_memory_per_block_optin=232448,
    )  # fmt: skip


def _set_mode(mode: int | str) -> None:
    WATCH.mode = ("default", "warn", "error")[mode] if isinstance(mode, int) else mode


def _exchange(index: int) -> int:
    before: int = lib.current_device()
    if index >= 0:
        lib.set_device(index)
    return before


def _index(device: Any) -> int:
    device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    return int(lib.current_device() if device.index is None else device.index)


def _each(names: str, value: Callable[[], Any]) -> dict[str, Callable[..., Any]]:
    """A function of its own for each name, as torch's compiler wants it; arguments are ignored."""
    return {name: lambda *_, **__: value() for name in names.split()}


def _patches() -> dict[str, Callable[..., Any]]:
    """What torch.cuda offers on this device."""
    return {
        **_each("_lazy_init init empty_cache ipc_collect manual_seed manual_seed_all", lambda: None),
        **_each("set_stream _set_allocator_settings", lambda: None),
        **_each("is_available is_initialized", lambda: True),
        **_each("memory_allocated memory_reserved", lib.allocated),
        **_each("max_memory_allocated max_memory_reserved", lib.peak),
        **_each("current_stream default_stream", _Stream),
        **{name: lambda index, _=name: _exchange(index) for name in ("_exchange_device", "_maybe_exchange_device")},
        "device_count": lambda: 1, "current_device": lib.current_device,
        "set_device": lambda device: lib.set_device(_index(device)),
        "get_device_name": lambda device=None: NAME, "get_device_properties": _properties,
        "get_device_capability": lambda device=None: CAPABILITY,
        "is_bf16_supported": lambda including_emulation=True: flash.OLDEST <= CAPABILITY or including_emulation,
        "synchronize": lambda device=None: WATCH.waited("synchronize"),
        "reset_peak_memory_stats": lambda device=None: lib.reset_peak(), "memory_stats": lambda device=None: {},
        "mem_get_info": lambda device=None: (TOTAL - lib.allocated(), TOTAL),
        "get_rng_state": lambda device="cuda": torch.get_rng_state(),
        "get_rng_state_all": lambda: [torch.get_rng_state()],
        "set_rng_state": lambda state, device="cuda": torch.set_rng_state(state),
        "set_rng_state_all": lambda states: torch.set_rng_state(states[0]),
        "initial_seed": torch.initial_seed, "_is_in_bad_fork": lambda: False,
        "Stream": _Stream, "Event": _Event, "stream": contextlib.nullcontext, "StreamContext": contextlib.nullcontext,
        "CUDAGraph": graphs.CUDAGraph, "graph": graphs.Capture,
        "is_current_stream_capturing": lambda: WATCH.captures > 0,
        "set_sync_debug_mode": _set_mode,
        "get_sync_debug_mode": lambda: ("default", "warn", "error").index(WATCH.mode),
    }  # fmt: skip


def _install() -> None:
    """Put the device into torch.cuda, its storages into torch, and its attention among torch's operators."""
    for name, value in _patches().items():
        for module in (torch.cuda, torch.cuda.graphs, torch.cuda.memory):
            if module is torch.cuda or hasattr(module, name):
                setattr(module, name, value)
    _install_storages()
    torch.Tensor.record_stream = lambda self, stream: None  # type: ignore[assignment,method-assign]
    for name in ("forward", "backward"):
        LIBRARY.impl(
            f"_flash_attention_{name}", _counted_once(f"aten::_flash_attention_{name}", getattr(flash, name)), "CUDA"
        )
    LIBRARY.impl("silu_backward", _counted_once("aten::silu_backward", _silu_backward), "CUDA")
    liger.define(LIGER, _counted_once)


def _counted_once(name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """One kernel as one operator, whatever it is made of here."""

    def run(*args: Any, **kwargs: Any) -> Any:
        counted = lib.pause()
        try:
            with unwatched():
                return kernel(*args, **kwargs)
        finally:
            if counted:
                lib.add(name)

    return run


def _silu_backward(grad: Tensor, x: Tensor) -> Tensor:
    """CUDA's own kernel: in float32, rounded once."""
    wide, sigmoid = x.float(), torch.sigmoid(x.float())
    return (grad.float() * sigmoid * (1 + wide * (1 - sigmoid))).to(x.dtype)


def _install_storages() -> None:
    """Make storages, whose Python names know the build's devices alone, resize and clone."""
    resize, clone = torch.UntypedStorage.resize_, torch.UntypedStorage.clone

    def as_bytes(storage: Any) -> Tensor:
        return torch.empty(0, dtype=torch.uint8, device="cuda").set_(storage)

    def resized(self: Any, size: int) -> Any:
        if self.device.type != "cuda":
            return resize(self, size)
        lib.resize_storage(as_bytes(self), size)
        return self

    def cloned(self: Any) -> Any:
        return as_bytes(self).clone().untyped_storage() if self.device.type == "cuda" else clone(self)

    torch.UntypedStorage.resize_, torch.UntypedStorage.clone = resized, cloned  # type: ignore[method-assign]


LIBRARY, LIGER = torch.library.Library("aten", "IMPL"), torch.library.Library("liger", "DEF")
_install()
