"""MLflow: a run of an experiment, in a SQLite file or on the server in MLFLOW_TRACKING_URI."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from posttrain.pipeline.track.runs import TrackedRun
from posttrain.pipeline.track.tracker import FOLDER, Steps, Table
from posttrain.settings.plain import flattened

ID: Final = "posttrain.id"
AT_ONCE: Final = 1000
"""Maximum number of metrics in a request. A request is stored completely or not at all."""
PARAMS_AT_ONCE: Final = 100
STEP: Final = "step"
"""A metric whose value is its step number, which shows where to continue."""
LONGEST: Final = 6000
"""Maximum number of characters of a parameter's value."""


class Mlflow:
    """Per-step metrics, final metrics as step 0, settings as parameters, tables and lineage as artifacts."""

    package: Final = "mlflow"

    def start(self, project: str, run: TrackedRun) -> int:
        from mlflow import MlflowClient
        from mlflow.entities import Param

        local = FOLDER.resolve() / "mlflow"
        uri = os.environ.get("MLFLOW_TRACKING_URI", "")
        place = None if uri else (local / "artifacts").as_uri()
        local.mkdir(parents=True, exist_ok=True)
        self._client: Any = MlflowClient(uri or _database(local / "mlflow.db"))
        existing = self._client.get_experiment_by_name(project)
        experiment = existing.experiment_id if existing else self._client.create_experiment(project, place)
        same = self._client.search_runs([experiment], f"tags.`{ID}` = '{run.id}'")
        opened = same[0] if same else self._client.create_run(experiment, run_name=run.label, tags={ID: run.id})
        self._run, self._tables = opened.info.run_id, list[dict[str, str]]()
        settings = [Param(key, value[:LONGEST]) for key, value in flattened(run.settings).items()]
        for first in range(0, len(settings), PARAMS_AT_ONCE):
            self._client.log_batch(self._run, params=settings[first : first + PARAMS_AT_ONCE])
        self._client.log_dict(self._run, dict(run.lineage), "lineage.json")
        self._client.set_tag(self._run, "mlflow.note.content", run.notes)  # its page shows it as the description
        return int(opened.data.metrics.get(STEP, -1)) + 1

    def log(self, steps: Steps) -> None:
        from mlflow.entities import Metric

        waiting = list[Any]()
        for step, metrics in steps:
            if len(waiting) + len(metrics) >= AT_ONCE:
                self._client.log_batch(self._run, metrics=waiting)
                waiting = []
            waiting += [Metric(name, value, _now(), step) for name, value in {**metrics, STEP: float(step)}.items()]
        self._client.log_batch(self._run, metrics=waiting)

    def figures(self, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        there = self._client.get_run(self._run).data.metrics
        named = {f"results/{name}": value for name, value in values.items()}
        new = [Metric(name, value, _now(), 0) for name, value in named.items() if there.get(name) != value]
        self._client.log_batch(self._run, metrics=new)

    def table(self, name: str, rows: Table) -> None:
        data = {"columns": list(rows[0]) if rows else [], "data": [list(row.values()) for row in rows]}
        self._client.log_dict(self._run, data, f"{name}.json")
        self._tables.append({"path": f"{name}.json", "type": "table"})
        self._client.set_tag(self._run, "mlflow.loggedArtifacts", json.dumps(self._tables))  # its page shows these

    def finish(self) -> None:
        self._client.set_terminated(self._run)


def _now() -> int:
    return time.time_ns() // 1_000_000


def _database(file: Path) -> str:
    """Return the address of a database. The file appears under its name only when all tables exist.

    MLflow creates the tables one by one, so opening the file meanwhile, or after a kill, would fail.
    """
    from mlflow import MlflowClient

    if not file.exists():
        unfinished = file.with_name(f"{file.name}.{os.getpid()}")
        MlflowClient(f"sqlite:///{unfinished}").search_experiments(max_results=1)
        with suppress(FileExistsError):  # another process was first
            os.link(unfinished, file)
        unfinished.unlink()
    return f"sqlite:///{file}"
