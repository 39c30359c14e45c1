"""`posttrain checkpoints`: list, resume, restart and remove the checkpoints of unfinished runs."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from posttrain.errors import ParamsError, PipelineError, excerpt
from posttrain.files import format_age, format_size
from posttrain.locks import HELD, is_locked, remove_unlocked
from posttrain.measure.provenance import differences, read_maker
from posttrain.measure.record import read_record
from posttrain.pipeline.checks.params_schema import check_params
from posttrain.pipeline.lock.digests import Digests
from posttrain.pipeline.lock.graph import changed
from posttrain.pipeline.params.params_file import read
from posttrain.pipeline.params.stage_table import STAGES, group_of
from posttrain.pipeline.runs.stage_checkpoints import ACCEPTED, ASKED
from posttrain.pipeline.runs.stage_maker import stage_maker
from posttrain.pipeline.runs.typed import load_settings
from posttrain.pipeline.workspace import DONE, checkpoint_path
from posttrain.settings.plain import CHECKPOINTS
from posttrain.train.checkpoint import RUN, STATE
from posttrain.train.loop import RUNS_ON, checkpoint_settings

LIST = "`posttrain checkpoints` lists them"


@dataclass(frozen=True)
class RunCheckpoints:
    """The checkpoints of one run in their folder."""

    folder: Path

    @property
    def output(self) -> str:
        """The model that the run makes: `online/grpo`."""
        return self.folder.parent.relative_to(checkpoint_path("")).as_posix()

    @cached_property
    def stage(self) -> str:
        """DVC's name of the stage, if params.yaml still has the run."""
        named = (f"{stage}@{run}" for stage, _, run, output in _model_runs() if output == self.output)
        return next(named, self.output.replace("/", "@", 1))

    @cached_property
    def newest(self) -> Path:
        return max(self.folder.glob("step-[0-9]*"))

    @property
    def step(self) -> int:
        return int(self.newest.name.partition("-")[2])

    @property
    def size(self) -> int:
        total = 0
        for file in _walk(self.folder):
            with contextlib.suppress(FileNotFoundError):  # a running stage replaces its checkpoints
                total += file.stat().st_size
        return total

    @property
    def age_s(self) -> float:
        return max(0.0, time.time() - self.newest.stat().st_mtime)

    @cached_property
    def unused(self) -> str:
        """The reason why no run in params.yaml would resume them; empty if a run would."""
        run = read_record(self.folder / RUN)
        if run.get("format") != CHECKPOINTS:
            return "made by another version of posttrain"
        return _other_run(run, self.output)

    @property
    def state(self) -> str:
        """The state as text: running, finished, damaged, or how the stage would treat them now."""
        if is_locked(self.folder / HELD):
            return "running"
        if self.unused:
            return self.unused
        if (self.folder / DONE).is_file():
            return "finished, waits for DVC to record it"
        if (made := read_maker(self.newest / STATE, "maker")) is None:
            return "damaged"
        now, accepted = stage_maker(self.output), read_maker(self.folder / ACCEPTED)
        changes = differences(made, now)
        if changes and (accepted is None or differences(accepted, now)):
            return f"made with other code or packages: {', '.join(changes[:5])}"
        return "resumable"


def list_checkpoints() -> str:
    """Return a line for each run with checkpoints."""
    checkpoints = _all_checkpoints()
    if not checkpoints:
        return "no checkpoints"
    rows = [
        (
            checkpoint.stage,
            f"step {checkpoint.step}",
            format_size(checkpoint.size),
            f"{format_age(checkpoint.age_s)} ago",
            checkpoint.state,
        )
        for checkpoint in checkpoints
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4]]) for row in rows
    ]
    return "\n".join([*lines, f"{format_size(sum(checkpoint.size for checkpoint in checkpoints))} in all"])


def resume(stage: str) -> str:
    """Let the stage resume with the code that was last refused. posttrain asks again after a later edit."""
    lines = []
    for run in _waiting(stage):
        (run.folder / ASKED).replace(run.folder / ACCEPTED)
        lines.append(f"{run.stage}: the next run with the code and packages that it named resumes at step {run.step}")
    return "\n".join(lines)


def restart(stage: str) -> str:
    """Remove the checkpoints that the stage last refused to resume."""
    return "\n".join(f"{_remove(checkpoint)}; its next run starts from step 0" for checkpoint in _waiting(stage))


def clean(which: Literal["unused", "all"]) -> str:
    """Remove all checkpoints, or only checkpoints that no run would resume, unless a process uses them."""
    if which == "unused":
        check_params()  # a run that cannot be read may resume what would be removed
    unwanted = [
        checkpoint
        for checkpoint in _all_checkpoints()
        if (which == "all" or checkpoint.unused) and not is_locked(checkpoint.folder / HELD)
    ]
    lines = [_remove(checkpoint) for checkpoint in unwanted]
    return "\n".join(lines) or f"nothing to remove; {LIST}"


def _all_checkpoints() -> list[RunCheckpoints]:
    folders = {file.parents[1] for file in _walk(checkpoint_path("")) if re.fullmatch("step-[0-9]+", file.parent.name)}
    return sorted(
        (RunCheckpoints(folder) for folder in folders), key=lambda checkpoint: (checkpoint.output, checkpoint.age_s)
    )


def _walk(folder: Path) -> Iterator[Path]:
    """Yield every file in a folder. Unlike `rglob`, skip folders that a running stage removes meanwhile."""
    return (Path(place, name) for place, _, names in os.walk(folder) for name in names)


def _waiting(stage: str) -> list[RunCheckpoints]:
    """Return the runs of a stage that were refused and wait for an answer. Raise if a process uses one."""
    output = next(
        (output for name, _, run, output in _model_runs() if f"{name}@{run}" == stage), stage.replace("@", "/")
    )
    checkpoints = [checkpoint for checkpoint in _all_checkpoints() if checkpoint.output == output]
    if not checkpoints:
        raise PipelineError(what="no checkpoints", where=stage, fix=f"Give the stage's name in DVC; {LIST}")
    asking = [checkpoint for checkpoint in checkpoints if (checkpoint.folder / ASKED).is_file()]
    if not asking:
        fix = f"Run it first: it resumes or reports what differs. {LIST}"
        raise PipelineError(
            what="none of its runs was stopped because its code or packages changed", where=stage, fix=fix
        )
    for refused in asking:
        if is_locked(refused.folder / HELD):
            fix = "Wait until it has ended, or stop it"
            raise PipelineError(what="a process is using its checkpoints", where=stage, fix=fix)
    return asking


def _remove(run: RunCheckpoints) -> str:
    """Remove a run's checkpoints. Return a line about them."""
    line = f"removed step {run.step} of {run.stage} ({format_size(run.size)}, {format_age(run.age_s)} old)"
    if not remove_unlocked(run.folder):
        raise PipelineError(what="a process is using it", where=str(run.folder), fix="Wait until it has ended")
    return line


def _model_runs() -> Iterator[tuple[str, str, str, str]]:
    """Yield (stage, group, run, model) for every run that makes a model; nothing if params.yaml cannot be read."""
    try:
        settings = read()
    except ParamsError:
        return
    for stage in STAGES:
        for run in group_of(settings, stage.group) if stage.makes == "model" else ():
            yield stage.name, stage.group, str(run), stage.output(str(run))


def _other_run(run: Mapping[str, Any], output: str) -> str:
    """Return how a recorded run differs from params.yaml; empty if it does not."""
    place = next(((group, name) for _, group, name, made in _model_runs() if made == output), None)
    if place is None:
        return "no such run in params.yaml"
    try:
        settings = json.loads(json.dumps(checkpoint_settings(load_settings(*place)), default=str))
    except ParamsError:
        return f"{'.'.join(place)} in params.yaml is wrong"
    old = {key: value for key, value in run["settings"].items() if key != RUNS_ON}
    if other_setting := next(changed(settings, old), None):
        keys, now, before = other_setting
        return f"other parameters: {'.'.join(keys)} {excerpt(before)}, now {excerpt(now)}"
    digests = Digests()
    other = [path for path, digest in run["inputs"].items() if digests.of(path) != digest]
    return f"other inputs: {', '.join(other)}" if other else ""
