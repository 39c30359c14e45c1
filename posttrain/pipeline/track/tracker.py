"""What a tracker does for a run, and the trackers that there are: all are plugins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from posttrain.pipeline.track.runs import TrackedRun
from posttrain.settings.listing import Listing, with_methods

FOLDER: Final = Path(".track")
"""What trackers write without a server; it may be removed."""
Steps = Sequence[tuple[int, Mapping[str, float]]]
"""Steps of a curve in their order, with their metrics."""
Table = Sequence[Mapping[str, str | float | bool | None]]
"""Rows with the same columns."""


class Tracker(Protocol):
    """One run at one tracker. A run that is pushed again has the same id, and adds nothing that is there already."""

    def start(self, project: str, run: TrackedRun) -> int:
        """Open the run, new, or as it was left and still is; return the first step that it lacks."""

    def log(self, steps: Steps) -> None:
        """Add steps of the curve."""

    def figures(self, values: Mapping[str, float]) -> None:
        """Set what was measured at the end, by name."""

    def table(self, name: str, rows: Table) -> None:
        """Set a table."""

    def finish(self) -> None:
        """Wait until everything is there, and close the run."""


TRACKERS: Final[Listing[type[Tracker]]] = Listing("", "", group="trackers", adopt=with_methods(Tracker))
"""Name of a tracker -> the class that speaks with it. `package`, if the class has it, is the package that it needs."""
