"""Weights & Biases: offline, for `wandb sync`, unless WANDB_MODE is online. Keys come only from the environment."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from typing import Any, Final

from posttrain.pipeline.track.runs import TrackedRun
from posttrain.pipeline.track.tracker import FOLDER, Steps, Table


class Wandb:
    """Per-step history, final metrics in the summary, settings and lineage in the config.

    An offline run is replaced.
    """

    package: Final = "wandb"

    def start(self, project: str, run: TrackedRun) -> int:
        import wandb

        mode = os.environ.get("WANDB_MODE", "offline")
        FOLDER.mkdir(exist_ok=True)
        for old in (FOLDER / "wandb").glob(f"offline-run-*-{run.id}"):
            shutil.rmtree(old)
        self._run: Any = wandb.init(
            project=project,
            id=run.id,
            name=run.label,
            group=run.name,
            notes=run.notes,
            config={**run.settings, "lineage": dict(run.lineage)},
            dir=str(FOLDER),
            mode=mode,
            resume="allow" if mode == "online" else None,
            reinit="create_new",
            settings=wandb.Settings(
                console="off", silent=True, disable_git=True, save_code=False, x_disable_stats=True, x_disable_meta=True
            ),
        )
        return int(self._run.step) if mode == "online" else 0

    def log(self, steps: Steps) -> None:
        for step, metrics in steps:
            self._run.log(dict(metrics), step=step, commit=True)

    def figures(self, values: Mapping[str, float]) -> None:
        self._run.summary.update({f"results/{name}": value for name, value in values.items()})

    def table(self, name: str, rows: Table) -> None:
        import wandb

        data = [list(row.values()) for row in rows]
        self._run.summary[name] = wandb.Table(columns=list(rows[0]) if rows else [], data=data)

    def finish(self) -> None:
        self._run.finish()
