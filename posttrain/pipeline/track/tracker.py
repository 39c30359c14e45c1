"""The interface of trackers, and all known trackers. All are plugins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from posttrain.pipeline.track.runs import TrackedRun
from posttrain.settings.listing import Listing, with_methods

FOLDER: Final = Path(".track")
"""The folder that trackers without a server write to. It may be removed."""
Steps = Sequence[tuple[int, Mapping[str, float]]]
"""Steps of a curve in order, with metrics."""
Table = Sequence[Mapping[str, str | float | bool | None]]
"""Rows with the same columns."""


class Tracker(Protocol):
    """One run at one tracker. Pushing a run again uses the same id and adds only new data."""

    def start(self, project: str, run: TrackedRun) -> int:
        """Create or reopen the run. Return its first missing step."""

    def log(self, steps: Steps) -> None:
        """Add steps of the curve."""

    def figures(self, values: Mapping[str, float]) -> None:
        """Set the final metrics, by name."""

    def table(self, name: str, rows: Table) -> None:
        """Set a table."""

    def finish(self) -> None:
        """Wait until all data is uploaded, and close the run."""


TRACKERS: Final[Listing[type[Tracker]]] = Listing("", "", group="trackers", adopt=with_methods(Tracker))
"""Name of a tracker -> its class. `package`, if the class has it, is the required package."""
