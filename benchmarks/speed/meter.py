"""Time and peak memory of one side, counted from the update after the warm-up.

On a CPU that is CPU time and the process's largest resident size; on a GPU, time on the wall with all work done, and
the device memory that tensors took at most.
"""

from __future__ import annotations

import json
import os
import resource
import time
from dataclasses import asdict, dataclass, field


@dataclass
class Meter:
    """Started by each side when an update begins; the warm-up's updates are not counted."""

    warm: int
    device: str = "cpu"
    _begun: int = 0
    _start: float = 0.0
    _spent: float = 0.0
    _system: float = 0.0

    def update(self) -> None:
        """An update begins."""
        if self._begun == self.warm:
            self._forget_peak()
            self._start, self._system = self._now(), os.times().system
        self._begun += 1

    def end(self) -> None:
        """The last update is done."""
        self._spent, self._system = self._now() - self._start, os.times().system - self._system

    def _forget_peak(self) -> None:
        """Count the memory of updates, not that of making the model."""
        if self.device != "cpu":
            import torch

            torch.cuda.reset_peak_memory_stats()

    def _now(self) -> float:
        if self.device == "cpu":
            return time.process_time()
        import torch

        torch.cuda.synchronize()
        return time.perf_counter()

    def report(self, units: float, losses: list[float], **seen: float) -> Report:
        """Return what the side did: useful units (tokens, pairs, completions) and the loss of every update."""
        return Report(self._spent, units, peak_mb(self.device), losses, seen, self._system)


@dataclass(frozen=True)
class Report:
    """One side's measurement."""

    seconds: float
    units: float
    peak_mb: float
    losses: list[float]
    seen: dict[str, float] = field(default_factory=dict)
    system: float | None = None
    """CPU seconds in the kernel, most of them for memory; None in reports from before they were kept."""

    @property
    def rate(self) -> float:
        """Useful units per second."""
        return self.units / self.seconds

    @property
    def user_rate(self) -> float:
        """Useful units per second outside the kernel."""
        return self.units / (self.seconds - (self.system or 0.0))

    def line(self) -> str:
        """Return one line of JSON, for the process that started the side."""
        return json.dumps(asdict(self))


def peak_mb(device: str) -> float:
    """Return the process's largest resident size, or what its tensors took of the GPU."""
    if device != "cpu":
        import torch

        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
