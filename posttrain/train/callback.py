"""The interfaces of objects that watch a run between steps or store its samples, and a watch that does nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

import polars as pl
from torch import Tensor

from posttrain.formulas.ragged import Ragged

Check = Callable[[pl.DataFrame, Path], pl.DataFrame]
"""Checks a part of a table before it is written into a file, and returns it."""


class Watch(Protocol):
    """Evaluates a run between its steps. Its state is stored in the run's checkpoints."""

    @property
    def ended(self) -> bool:
        """True if the run must end before the step last passed to `look`."""
        ...

    def look(self, step: int) -> dict[str, float]:
        """Return metrics of the weights before this step. It is called for each step and after the last step."""
        ...

    def finish(self) -> dict[str, float]:
        """Set the run's weights to the best weights. Return their measurements."""
        ...

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state that a checkpoint needs to resume."""
        ...

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Restore the state from `state_dict`."""
        ...


class NoWatch:
    """Evaluates nothing."""

    ended = False

    def look(self, step: int) -> dict[str, float]:  # noqa: ARG002
        """Return no metrics."""
        return {}

    def finish(self) -> dict[str, float]:
        """Keep the last weights."""
        return {}

    def state_dict(self) -> dict[str, Tensor]:
        """Return no state."""
        return {}

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Restore nothing."""


class StepLog(Protocol):
    """Stores the rows of each training step. Its state is stored in the run's checkpoints."""

    def open(self, folder: Path) -> None:
        """Keep the stored data in this folder, next to the checkpoints, until the run ends."""

    def trained(self, step: int, prepared: Ragged) -> None:
        """Record the rows of an optimizer step."""

    def finish(self, target: Path, steps: Sequence[dict[str, float]], check: Check = ...) -> None:
        """Write everything into a folder. `check` is called with each part of the table before it is written."""

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state that a checkpoint needs to resume."""
        ...

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Restore the state from `state_dict`."""


class NoLog:
    """Stores nothing."""

    def open(self, folder: Path) -> None:
        """Store nothing."""

    def trained(self, step: int, prepared: Ragged) -> None:
        """Store nothing."""

    def finish(self, target: Path, steps: Sequence[dict[str, float]], check: Check = ...) -> None:
        """Write nothing."""

    def state_dict(self) -> dict[str, Tensor]:
        """Return no state."""
        return {}

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """There is nothing to restore."""


NO_WATCH: Final = NoWatch()
NO_LOG: Final = NoLog()
