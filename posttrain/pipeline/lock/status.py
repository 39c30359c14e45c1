"""`posttrain status`: running stages, stale stages with their reasons, and DVC's own view."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from posttrain.errors import PipelineError, PosttrainError, shortened
from posttrain.measure.progress import clock, progress_path, progress_text, read_progress
from posttrain.measure.timings import read_timings, timings_path
from posttrain.pipeline.lock.cache_gaps import gap_words
from posttrain.pipeline.lock.code_manifest import CODE, is_current
from posttrain.pipeline.lock.dvc_index import readable_index
from posttrain.pipeline.lock.reasons import DuringRun, Reasons
from posttrain.pipeline.lock.running import running_stages
from posttrain.pipeline.params.yaml_files import read_yaml
from posttrain.pipeline.workspace import PARAMS_FILE


@contextmanager
def dvc_repo() -> Iterator[Any]:
    """Yield DVC's view of this project with an up-to-date `code`. DVC's errors become one line."""
    from dvc.exceptions import DvcException
    from dvc.lock import LockError
    from dvc.repo import Repo

    read_yaml(PARAMS_FILE)  # DVC would not end on aliases that swell
    try:
        with readable_index(), Repo(_wait_for_lock=True) as repo, read_once(repo):
            refresh_code(repo)
            yield repo
    except LockError as error:  # DVC advises to remove its locks, which can do damage
        what = shortened(" ".join(str(error).split()).partition(" If there are")[0], 300)
        fix = "Try again when that has ended; `posttrain status` shows what runs"
        raise PipelineError(what=what, where=".dvc/tmp", fix=fix) from error
    except DvcException as error:
        what, fix = shortened(str(error), 300), "Fix it; `posttrain check` may say more"
        raise PipelineError(what=what, where="dvc.yaml", fix=fix) from error


@contextmanager
def read_once(repo: Any) -> Iterator[None]:
    """Make DVC read the graph and params.yaml only once in this context, instead of once per stage."""
    from dvc.dependency import param
    from dvc.repo import lock_repo

    load: Any = vars(param)["load_path"]
    known: dict[str, Any] = {}

    def load_once(path: str, fs: Any, **options: Any) -> Any:
        if path not in known:
            known[path] = load(path, fs, **options)
        return known[path]

    with lock_repo(repo):  # DVC forgets the graph whenever it releases its lock
        vars(param)["load_path"] = load_once
        try:
            yield
        finally:
            vars(param)["load_path"] = load


def refresh_code(repo: Any) -> None:
    """Let DVC run the stage `code` if code, parameters or packages changed. DVC itself does not track packages."""
    from dvc.exceptions import ReproductionError
    from dvc.lock import LockError

    logging.getLogger("dvc").setLevel(logging.WARNING)  # its advice on git would stand in our output
    if not any(stage.addressing == CODE for stage in repo.index.stages):
        return
    if is_current() and not repo.status(targets=[CODE]):
        return
    try:
        repo.reproduce(CODE, single_item=True, force=True)
    except ReproductionError as error:
        if isinstance(error.__cause__, LockError):  # callers that wait for another DVC process expect this error
            raise error.__cause__ from None
        raise


def status() -> str:
    """Return the running stages with progress, a line for each stage that must run, and durations.

    A line lists what must run after its stage.
    """
    reasons = Reasons()
    order = reasons.pipeline.order()
    running = running_stages(reasons.pipeline)
    lines = running_lines(running)
    lacking = gap_words(Path(), reasons.pipeline, reasons.lock)
    again = {*reasons.to_run(running), *lacking}
    waiting = [name for name in order if name in again]
    absent = [name for name in order if name not in running and reasons.is_absent(name)]
    lines += _absent(absent, {*lacking})
    for name in order:
        if name in absent:
            continue
        why = [*reasons.of(name), *([lacking[name]] if name in lacking else [])]
        if name not in running and why:
            below = [stage for stage in reasons.below(name) if stage not in running and stage != name]
            then = f"; then stale because of it: {', '.join(below)}" if below else ""
            lines.append(f"{name}: {'; '.join(why)}{then}")
    reasons.keep()
    return "\n".join([*lines, _left(len(order), waiting)]) if waiting else "nothing is stale"


def _absent(names: Sequence[str], lacking: Collection[str]) -> list[str]:
    """Return a line about stages that ran elsewhere, or whose outputs git has switched away from."""
    pulled, here = [name for name in names if name in lacking], [name for name in names if name not in lacking]
    said = "their outputs are not in this folder"
    lines = [f"{', '.join(pulled)}: {said}. `dvc pull` gets them, `dvc repro` makes them again"] if pulled else []
    return lines + ([f"{', '.join(here)}: {said}. `dvc checkout` brings them back from the cache"] if here else [])


def running_lines(running: Mapping[str, int]) -> list[str]:
    """Return a line for each running stage, with its progress and its DVC process."""
    return [f"{name}: running{_progress(name, pid)} (PID {pid})" for name, pid in running.items()]


def place(stage: str) -> str:
    """Return the prefix of a running stage's first line, e.g. '[3/14] sft@main'; empty outside of DVC."""
    count, waiting = _during(stage)
    return f"[{count - len(waiting) + 1}/{count}] {stage}" if waiting else ""


def left(stage: str) -> str:
    """Return the last line that a stage prints, e.g. '11 of 14 stages are left, about 2:05'; empty outside of DVC."""
    count, waiting = _during(stage)
    rest = [name for name in waiting if name != stage]
    took, unknown = _time(rest)
    about = f", about {took}{unknown}" if took else ""
    return f"{len(rest)} of {count} stages are left{about}" if waiting else ""


def _during(stage: str) -> tuple[int, list[str]]:
    """Return the number of stages, and those that must still run; empty if DVC did not start the stage."""
    if os.environ.get("DVC_STAGE") != stage:
        return 0, []
    try:
        reasons = DuringRun()
        waiting = reasons.to_run([stage, *running_stages(reasons.pipeline)])
        reasons.keep()
        return len(reasons.pipeline.stages), waiting
    except (PosttrainError, OSError):  # the line is left out; the command that needs the file names the error
        return 0, []


def _progress(stage: str, pid: int) -> str:
    """Return a stage's progress, e.g. ', 531/1800 steps  3/s  5:18 left  reward 1.08'; empty while it loads.

    Progress from before its DVC process started belongs to an earlier run.
    """
    try:
        state = read_progress(progress_path(stage), psutil.Process(pid).create_time())
    except psutil.Error:
        return ""
    return f", {progress_text(state)}" if state else ""


def _left(count: int, waiting: list[str]) -> str:
    """Return how many stages are done, and how long the others took when they last ran."""
    took, unknown = _time(waiting)
    others = f"; the others took {took} when they last ran{unknown}" if took else ""
    return f"{count - len(waiting)} of {count} stages are done{others}"


def _time(stages: Collection[str]) -> tuple[str, str]:
    """Return how long these stages took when they last ran, empty if none has; and how many never ran."""
    files = [timings_path(stage) for stage in stages]
    known = [read_timings(file)["total"] for file in files if file.is_file()]
    unknown = f" ({len(files) - len(known)} of them never ran here)" if len(known) < len(files) else ""
    return clock(sum(known)) if known else "", unknown
