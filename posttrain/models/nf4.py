"""Frozen 4-bit matrices (NF4, Dettmers 2023) for QLoRA: quantiles of a normal distribution, scaled by block.

W ~ C[codes] * s      s = max |W| of a block of 64 numbers; same format and numbers as bitsandbytes
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from posttrain.models.forward.forward import backbone

BLOCK = 64
PART_BLOCKS = {"cpu": 2**14}
"""The blocks of a matrix that are made at a time, so that they fit a CPU's cache."""
GPU_PART_BLOCKS = 2**20
"""The same on a GPU, where each part costs four launches. Most matrices are made in one part."""
PART_BYTES = 6
"""Bytes per number of such a part: its indices, and its values in float32."""
LEVELS = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
"""C: the values of the 16 codes."""


def quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the codes, two per byte, and the scale of each block."""
    levels = torch.tensor(LEVELS, device=weight.device)
    flat = nn.functional.pad(weight.detach().float().flatten(), (0, -weight.numel() % BLOCK)).view(-1, BLOCK)
    scales = flat.abs().amax(1)
    middles = (levels[1:] + levels[:-1]) / 2
    unit = flat / scales.clamp(min=torch.finfo(torch.float32).tiny)[:, None]
    codes = torch.bucketize(unit, middles).to(torch.uint8).view(-1, 2)
    return codes[:, 0] << 4 | codes[:, 1], scales


def level_pairs() -> Tensor:
    """Return the two values of each byte of codes [256, 2]."""
    levels = torch.tensor(LEVELS)
    return torch.stack([levels.repeat_interleave(len(LEVELS)), levels.repeat(len(LEVELS))], dim=1)


def part_blocks(device: torch.device) -> int:
    """Return the number of matrix blocks that are created at a time."""
    return PART_BLOCKS.get(device.type, GPU_PART_BLOCKS)


def dequantise(
    codes: Tensor, scales: Tensor, shape: torch.Size, dtype: torch.dtype = torch.float32, pairs: Tensor | None = None
) -> Tensor:
    """Return the matrix of these codes.

    It is created in parts, because indices need many times the memory of the values.

    `pairs`: `level_pairs`, on the device.
    """
    pairs = level_pairs().to(codes.device) if pairs is None else pairs
    flat = torch.empty(scales.numel(), BLOCK, dtype=dtype, device=codes.device)
    size = part_blocks(codes.device)
    parts = (torch.split(tensor, size) for tensor in (codes.view(-1, BLOCK // 2), scales, flat))
    for codes_part, scales_part, made in zip(*parts, strict=True):
        values = pairs.index_select(0, codes_part.flatten().int()).view(-1, BLOCK)
        made.copy_(values.mul_(scales_part[:, None]))
    return flat.flatten()[: shape.numel()].view(shape)


def dense_bytes(model: nn.Module, itemsize: int, device: torch.device) -> int:
    """Return the bytes of the largest 4-bit matrix after dequantization, plus its last part during creation."""
    sizes = [layer.in_features * layer.out_features for layer in model.modules() if isinstance(layer, Nf4Linear)]
    most = max(sizes, default=0)
    return itemsize * most + PART_BYTES * min(most, part_blocks(device) * BLOCK)


class Nf4Linear(nn.Linear):
    """A frozen 4-bit linear layer. Its matrix is created again for each product."""

    def __init__(self, linear: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        codes, scales = quantise(linear.weight)
        self.weight = nn.Parameter(codes, requires_grad=False)
        self.scales = nn.Parameter(scales, requires_grad=False)
        self.bias = linear.bias
        self.pairs: Tensor
        self.register_buffer("pairs", level_pairs().to(codes.device), persistent=False)

    def dense_weight(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the matrix [out, in]."""
        shape = torch.Size((self.out_features, self.in_features))
        return dequantise(self.weight, self.scales, shape, dtype, self.pairs)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (the name that nn.Linear has)
        """Return x W^T + b."""
        y: Tensor = _Product.apply(input, self)  # type: ignore[no-untyped-call]
        bias: Tensor | None = self.bias
        return y if bias is None else y + bias.to(y.dtype)


class _Product(torch.autograd.Function):
    """x W^T without storing W for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: Nf4Linear) -> Tensor:
        ctx.layer = layer
        return x @ layer.dense_weight(x.dtype).T

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0] @ ctx.layer.dense_weight(grads[0].dtype), None


def quantise_model(model: Any) -> None:
    """Replace the linear layers below the head by frozen 4-bit layers, in place."""
    core = backbone(model)
    for name in [name for name, _ in _linear_layers(core)]:  # a list of layers would hold all in float32
        core.set_submodule(name, Nf4Linear(core.get_submodule(name)))


@torch.no_grad()
def round_model(model: Any) -> None:
    """Round the same layers to values that 4 bits can store, to get the model that an adapter was trained on."""
    for _, linear in _linear_layers(backbone(model)):
        linear.weight.copy_(dequantise(*quantise(linear.weight), linear.weight.shape))


def _linear_layers(core: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    return ((name, part) for name, part in core.named_modules() if type(part) is nn.Linear)
