"""`posttrain status`: what runs, what is stale and why; and the view of DVC, for those who need it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from posttrain.errors import PipelineError
from posttrain.params.formats import read_yaml
from posttrain.pipeline.code_manifest import CODE, is_current
from posttrain.pipeline.reasons import Reasons
from posttrain.pipeline.running import running_stages
from posttrain.workspace import PARAMS_FILE


@contextmanager
def dvc_repo() -> Iterator[Any]:
    """DVC's view of this project with an up-to-date `code`; an error of DVC's is one line."""
    from dvc.exceptions import DvcException
    from dvc.lock import LockError
    from dvc.repo import Repo

    read_yaml(PARAMS_FILE)  # DVC would not end on aliases that swell
    try:
        with Repo(_wait_for_lock=True) as repo, read_once(repo):
            refresh_code(repo)
            yield repo
    except LockError as error:  # DVC advises to remove its locks, which can do damage
        what = " ".join(str(error).split()).partition(" If there are")[0][:300]
        fix = "Repeat it when that has ended; `posttrain status` says what runs"
        raise PipelineError(what=what, where=".dvc/tmp", fix=fix) from error
    except DvcException as error:
        what, fix = " ".join(str(error).split())[:300], "Fix it; `posttrain check` may say more"
        raise PipelineError(what=what, where="dvc.yaml", fix=fix) from error


@contextmanager
def read_once(repo: Any) -> Iterator[None]:
    """Have DVC read the graph once, and params.yaml once instead of once per stage, while it answers questions."""
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
    """Have DVC run the stage `code` if code, parameters or packages changed; DVC itself does not see packages."""
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
    """Return what runs now; a line for each stage that has to run by itself, with what has to run after it."""
    reasons = Reasons()
    running = running_stages(reasons.pipeline)
    lines = [f"{name}: running (PID {pid})" for name, pid in running.items()]
    for name in reasons.pipeline.order():
        if name not in running and (why := reasons.of(name)):
            below = [stage for stage in reasons.below(name) if stage not in running]
            then = f"; then stale because of it: {', '.join(below)}" if below else ""
            lines.append(f"{name}: {'; '.join(why)}{then}")
    reasons.keep()
    return "\n".join(lines) or "nothing is stale"
