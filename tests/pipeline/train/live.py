"""The memory that tensors take at their fullest, whatever holds them."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Counts every storage from the operation that makes it until nothing refers to it."""

    def __init__(self, there: Iterable[Tensor] = ()) -> None:
        """`there`: tensors that exist already."""
        super().__init__()
        self.now = self.most = 0
        self._known: set[int] = set()
        for part in there:
            self._add(part)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for part in tree_leaves(result):
            if isinstance(part, Tensor):
                self._add(part)
        return result

    def _add(self, part: Tensor) -> None:
        storage = part.untyped_storage()
        place, size = storage._cdata, storage.nbytes()
        if place not in self._known:
            self._known.add(place)
            self.now += size
            self.most = max(self.most, self.now)
            weakref.finalize(storage, self._drop, place, size)

    def _drop(self, place: int, size: int) -> None:
        self._known.discard(place)
        self.now -= size
