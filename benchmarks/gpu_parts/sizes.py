"""How much each part measures: as the GPU's figures were, or so little that a CPU can run it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from benchmarks.speed.case import SHAPES, Case
from benchmarks.speed.cases import GPU, TINY

Device = Literal["cpu", "cuda"]


@dataclass(frozen=True)
class Sizes:
    """The sizes of all parts."""

    copy_bytes: int
    square: int
    """Rows and columns of the product that shows the device's ceiling."""
    tile_tokens: int
    """Tokens of a tile of the head."""
    sft: Case
    dpo: Case
    grpo: Case
    lora: Case
    """8 billion weights with adapters."""
    long: Case
    """One long row."""
    even: tuple[int, ...]
    """Rows of the same length."""
    tail: tuple[int, ...]
    """One long row and many short ones."""
    cuts: tuple[tuple[int, ...], ...]
    """Where attention's calls are cut, longest rows first: of the case's rows, and of `tail`."""
    decoded: tuple[int, ...]
    """Rows that are decoded at a time."""
    answer: int
    """Tokens that a decoded row may get."""
    steps: int
    """Decoding steps that are timed."""
    replays: int
    """Decoding steps that are profiled."""
    requests: tuple[int, ...]
    """Requests at a time to vLLM."""

    def on(self, device: Device) -> Sizes:
        """Return the same on a device."""
        named = {name: replace(getattr(self, name), device=device) for name in ("sft", "dpo", "grpo", "lora", "long")}
        return replace(self, **named)


_FEW: dict[str, Any] = {"warm": 2, "updates": 5}
FULL = Sizes(
    copy_bytes=4 * 10**9, square=8192, tile_tokens=883,
    sft=replace(GPU["sft/Q"], **_FEW), dpo=replace(GPU["dpo/Q"], **_FEW), grpo=GPU["grpo/Q"],
    lora=replace(GPU["sft/8B"], longest=1205, warm_longest=1205), long=GPU["sft/Q-32k"],
    even=(871,) * 16, tail=(8192, *(512,) * 16), cuts=((2, 9), (1,)),
    decoded=(64, 256, 1024), answer=64, steps=40, replays=5, requests=(64, 256),
)  # fmt: skip
"""The lengths of `lora` make steps of about 8,200 tokens."""
# heads of 32 numbers are the smallest that vLLM's attention for CPUs takes
_ONE: dict[str, Any] = {
    "warm": 1,
    "updates": 1,
    "warm_longest": 24,
    "shape": replace(SHAPES["tiny-qwen3"], head_size=32),
}
SMALL = Sizes(
    copy_bytes=4096, square=16, tile_tokens=3,
    sft=replace(TINY["sft/tiny-qwen3"], **_ONE), dpo=replace(TINY["dpo/tiny"], **_ONE),
    grpo=replace(TINY["grpo/tiny"], **{**_ONE, "warm": 2, "updates": 2}), lora=replace(TINY["sft/tiny"], **_ONE),
    long=replace(TINY["sft/tiny"], **{**_ONE, "batch": 1, "padding": 1.0}),
    even=(8,) * 4, tail=(24, 4, 4, 4), cuts=((1, 2), (1,)),
    decoded=(2, 4), answer=8, steps=3, replays=1, requests=(2,),
)  # fmt: skip
