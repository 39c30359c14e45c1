"""trackio: a SQLite file, or the server in TRACKIO_SERVER_URL. Pushing a run again replaces it in the file."""

from __future__ import annotations

import contextvars
import os
from collections.abc import Mapping
from typing import Any, Final

from posttrain.pipeline.track.runs import TrackedRun
from posttrain.pipeline.track.tracker import FOLDER, Steps, Table

REMOTE: Final = ("TRACKIO_SERVER_URL", "TRACKIO_SPACE_ID")


class Trackio:
    """Per-step metrics, then final metrics and tables.

    A server receives them only once, because it cannot delete them.
    """

    package: Final = "trackio"

    def start(self, project: str, run: TrackedRun) -> int:
        os.environ.setdefault("TRACKIO_DIR", str(FOLDER.resolve() / "trackio"))
        import trackio

        if not any(os.environ.get(name) for name in REMOTE):
            _remove(project, run.label)
        # in a context of its own: trackio would end the run that was begun before in this one
        self._run: Any = contextvars.Context().run(
            trackio.init,
            project,
            name=run.label,
            group=run.name,
            config={**run.settings, "lineage": dict(run.lineage), "metrics": dict(run.about), "posttrain_id": run.id},
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        self._next, self._after = int(self._run._next_step), dict[str, Any]()
        return self._next

    def log(self, steps: Steps) -> None:
        for step, metrics in steps:
            self._run.log(dict(metrics), step=step)
            self._next = -1

    def figures(self, values: Mapping[str, float]) -> None:
        self._after |= {f"results/{name}": value for name, value in values.items()}

    def table(self, name: str, rows: Table) -> None:
        import trackio

        self._after[name] = trackio.Table(data=[dict(row) for row in rows])

    def finish(self) -> None:
        if self._after and self._next < 0:
            self._run.log(self._after)
        self._run.finish()


def _remove(project: str, label: str) -> None:
    import trackio

    try:
        runs = list(trackio.Api().runs(project))
    except ValueError:  # no such project
        return
    for run in runs:
        if run.name == label:
            run.delete()
