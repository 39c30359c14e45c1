"""Part 0: the rates that this device reaches at best, and the five products of a layer of the step."""

from __future__ import annotations

from functools import partial

import torch

from benchmarks.gpu_parts.figures import Figures, Judge, Result, limit, predicted
from benchmarks.gpu_parts.sizes import Device, Sizes
from benchmarks.gpu_parts.timing import milliseconds
from benchmarks.speed.case import Case, batches

COPY, PRODUCT = "copy", "product of squares"
COPY_GB_S, PRODUCT_TFLOPS = 3000.0, 790.0
"""Measured on an H100; the H200 copies 4,300 GB/s."""
SLOW = 0.65
"""Below this share of the ceiling the products of a step are a cause of their own: the estimate counts on 0.82."""


def run(figures: Figures, device: Device, sizes: Sizes) -> None:
    """Measure the copy, the large product, then the step's products."""
    figures.take(COPY, partial(_copy, device, sizes.copy_bytes), _copy_judge())
    square = (sizes.square,) * 3
    ceiling = figures.take(PRODUCT, partial(_product, device, *square), _product_judge())
    for name, shape in shapes(sizes.sft, sizes.tile_tokens).items():
        best = ceiling["tflops"] if ceiling else PRODUCT_TFLOPS
        figures.take(f"product of {name}", partial(_product, device, *shape, best), SHARE)


def step_tokens(case: Case) -> int:
    """Return the tokens of a step."""
    return sum(len(row) for item in batches(case)[-1] for row in item)


def shapes(case: Case, tile: int) -> dict[str, tuple[int, int, int]]:
    """Return tokens, inputs and outputs of a layer's products and of the head's."""
    shape, tokens = case.shape, step_tokens(case)
    width, keys = shape.heads * shape.head, (shape.kv_heads or shape.heads) * shape.head
    return {
        "q": (tokens, shape.width, width),
        "k or v": (tokens, shape.width, keys),
        "out": (tokens, width, shape.width),
        "gate or up": (tokens, shape.width, shape.feed_forward),
        "down": (tokens, shape.feed_forward, shape.width),
        "a tile of the head": (tile, shape.width, shape.vocabulary),
    }


def _copy_judge() -> Judge:
    return predicted(
        "gb_s", COPY_GB_S, "as an H100", "another memory: scale the times that bytes alone need", unit="GB/s"
    )


def _product_judge() -> Judge:
    return predicted("tflops", PRODUCT_TFLOPS, "as an H100 or H200", "another peak: scale the times", unit="TFLOP/s")


SHARE = limit("share", SLOW, "no cause", "slow for its shape: products are a cause", unit="of the large one's rate")


def _copy(device: Device, count: int) -> Result:
    source = torch.zeros(count, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    ms = milliseconds(lambda: target.copy_(source), device)
    return {"ms": ms, "gb_s": 2 * count / ms / 1e6}


def _product(device: Device, rows: int, inputs: int, outputs: int, best: float = 0.0) -> Result:
    left, right = torch.randn(rows, inputs, device=device), torch.randn(inputs, outputs, device=device)
    half = left.bfloat16(), right.bfloat16()
    ms = milliseconds(lambda: half[0] @ half[1], device)
    rate = 2 * rows * inputs * outputs / ms / 1e9
    return {"ms": ms, "tflops": rate} | ({"share": rate / best} if best else {})
