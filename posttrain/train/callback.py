"""What looks at a run between its steps: the interface, and the one that looks at nothing."""

from __future__ import annotations

from typing import Final, Protocol

from torch import Tensor


class Watch(Protocol):
    """Looks at a run between its steps; its state is in the run's checkpoints."""

    @property
    def ended(self) -> bool:
        """Whether the run is to end before the step that was looked at."""
        ...

    def look(self, step: int) -> dict[str, float]:
        """Metrics of the weights before this step; called for each step and after the last one."""
        ...

    def state_dict(self) -> dict[str, Tensor]:
        """Return what a checkpoint needs to resume."""
        ...

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""
        ...


class NoWatch:
    """Looks at nothing."""

    ended = False

    def look(self, step: int) -> dict[str, float]:  # noqa: ARG002
        """Return no metrics."""
        return {}

    def state_dict(self) -> dict[str, Tensor]:
        """Return no state."""
        return {}

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """There is nothing to restore."""


NO_WATCH: Final = NoWatch()
