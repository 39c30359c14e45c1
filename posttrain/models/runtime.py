"""What a run computes with: the device, its precision, and which of how many processes this one is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

from posttrain.models.device import Device, DeviceParams

T = TypeVar("T")


class Runtime(Device):
    """The device of a training run, its place among the processes, and whether fused gradients may be used."""

    def __init__(self, params: DeviceParams, *, rank: int = 0, world: int = 1, fused: bool = True) -> None:
        """`fused`: losses may write `.grad` and read the head's weight outside a forward pass, which is faster.

        Plain autograd gives the same gradient, also where weights are sharded or wrapped.
        """
        super().__init__(params)
        self.rank, self.world, self.fused = rank, world, fused

    def share(self, parts: Iterable[T]) -> Iterator[T]:
        """This process's parts of a step: they are cut as for one process and dealt in turn."""
        return islice(parts, self.rank, None, self.world)
