"""The settings of a run about its models, and how a start model is created."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from posttrain.models.adapters import Attach


class StartModel(Protocol):
    """Makes a new copy of a run's start model.

    `scores`: with a scalar head. `empty`: on torch's device "meta", without values and memory.
    """

    def __call__(self, *, scores: bool = False, empty: bool = False) -> Any: ...


class ModelSettings(Protocol):
    """The settings of a run that affect its models."""

    @property
    def micro_tokens(self) -> int: ...

    @property
    def shards(self) -> int | None: ...

    @property
    def divides_models(self) -> bool: ...

    @property
    def reference_moves(self) -> bool: ...

    @property
    def critic_start(self) -> Path | None: ...

    def attach(self, start: Path) -> Attach | None: ...
