"""The checkpoints of a stage. Parameters and inputs identify them. Resuming after code changes needs consent.

Each checkpoint records the code, packages and CPU instructions that made it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from posttrain.distributed import world
from posttrain.errors import CheckpointError, PipelineError
from posttrain.files import format_age, format_size, write_json
from posttrain.locks import HELD, is_locked, remove_unlocked
from posttrain.measure.phases import phase
from posttrain.measure.provenance import Maker, differences, read_maker
from posttrain.pipeline.lock.digests import Digests
from posttrain.pipeline.lock.inputs import confirm
from posttrain.pipeline.runs.stage_maker import stage_maker
from posttrain.pipeline.workspace import DONE, checkpoint_path, plot_path, recorded_digest
from posttrain.train.checkpoint import (
    CheckpointData,
    FolderCheckpoints,
    fingerprint,
    plain_key,
    read_checkpoint,
    step_name,
)

ASKED, ACCEPTED = "asked.json", "accepted.json"
"""The texts that would have let checkpoints of another maker resume, and the texts that a person has accepted."""


@phase("load")
def run_key(stage: str, settings: Mapping[str, Any], inputs: Sequence[Path]) -> dict[str, Any]:
    """Return the identity of a run's checkpoints: the stage, its parameters and the digests of its inputs."""
    digests = Digests()
    return plain_key(stage, settings, {path.as_posix(): digests.of(str(path)) for path in inputs})


def nearest_checkpoint(
    stage: str, settings: Mapping[str, Any], inputs: Sequence[Path], step: int
) -> CheckpointData | None:
    """Return the newest valid checkpoint up to a step, without locking or writing anything."""
    mark = fingerprint(run_key(stage, settings, inputs))
    folders = sorted((checkpoint_path(stage) / mark).glob("step-*"), reverse=True)
    for folder in (path for path in folders if path.name <= step_name(step)):
        with contextlib.suppress(CheckpointError):
            return read_checkpoint(folder, mark)
    return None


class Checkpoints(FolderCheckpoints):
    """The checkpoints of one run of a stage, in `checkpoints/STAGE/FINGERPRINT/step-N` under the main workspace.

    They stay after the run until DVC has recorded its outputs; a stage that starts later removes them. Checkpoints of
    unfinished runs with other parameters or inputs stay until a person removes them.
    """

    _listed = " (`posttrain checkpoints` lists what lies there)"

    def __init__(
        self,
        stage: str,
        settings: Mapping[str, Any],
        inputs: Sequence[Path],
        *,
        folder: Path | None = None,
        maker: Maker | None = None,
    ) -> None:
        """`folder`, `maker`: the default is the stage's own."""
        key = world.from_first(lambda: run_key(stage, settings, inputs))
        super().__init__(folder or checkpoint_path(stage), key, maker or stage_maker(stage), stage)

    def _open(self, key: Mapping[str, Any]) -> None:
        super()._open(key)
        if others := self._other_unfinished_runs():
            size = format_size(
                sum(file.stat().st_size for other in others for file in other.rglob("*") if file.is_file())
            )
            what = f"{len(others)} unfinished runs with other parameters or inputs use {size} for checkpoints"
            print(f"{self._name}: {what}; `posttrain checkpoints` lists them")

    def _before_save(self) -> None:
        confirm()
        self._remove_finished()

    def _resumed(self) -> None:
        if world.is_rank_zero():
            (self._folder / ASKED).unlink(missing_ok=True)

    def finish(self, written: Path | None = None) -> None:
        """Record that the run is finished, and the file it wrote.

        DVC's record of this file shows later that it is stored.

        `written`: its plot by default.
        """
        super().finish()
        if self._folder.is_dir() and world.is_rank_zero():
            (self._folder / DONE).write_text(recorded_digest(written or plot_path(self._name)), encoding="utf-8")

    def _other_runs(self) -> list[Path]:
        return [folder for folder in self._above.iterdir() if folder != self._folder and (folder / HELD).is_file()]

    def _other_unfinished_runs(self) -> list[Path]:
        return [
            run
            for run in self._other_runs()
            if any(run.glob("step-*")) and not (run / DONE).is_file() and not is_locked(run / HELD)
        ]

    def _remove_finished(self) -> None:
        """Remove the folders of the stage's other runs that are finished or never saved a checkpoint."""
        for folder in self._other_runs():
            if (folder / DONE).is_file() or not any(folder.glob("step-*")):
                remove_unlocked(folder)

    def _edits_since(self, saved: CheckpointData, folder: Path) -> list[str]:
        """Return the edits since the run began, including new ones. Raise if nobody has accepted them."""
        made, edits = saved.plain["maker"], list(saved.plain["edits"])
        changed = differences(made, self._maker)
        if not changed:
            return edits
        accepted = read_maker(self._folder / ACCEPTED)
        if accepted is None or differences(accepted, self._maker):
            if world.is_rank_zero():
                write_json(self._folder / ASKED, self._maker)
            stage = os.environ.get("DVC_STAGE", self._name).rpartition(":")[2]
            age = format_age(time.time() - folder.stat().st_mtime)
            named = ", ".join([*changed[:10], *(["and more"] if len(changed) > 10 else [])])
            what = f"step {saved.step}, saved {age} ago, was made with other code or packages: {named}"
            command = "posttrain checkpoints"
            fix = f"Resume it anyway with `{command} resume {stage}`, or start from step 0 with `{command} restart"
            raise PipelineError(what=what, where=str(self._folder), fix=f"{fix} {stage}`")
        return [*edits, f"step {saved.step}: {', '.join(changed)}"]
