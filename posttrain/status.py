"""`python -m posttrain status`: stale stages with their reasons, from DVC's status and the records of the runs."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from posttrain.code import CODE, Code, code_path, differences, is_current, read_code, read_params
from posttrain.digests import recorded
from posttrain.errors import PipelineError
from posttrain.measure.record import record_path
from posttrain.recorded_runs import read_record

MOST: Final = 6
"""As many changes of one kind as a line names."""


@contextmanager
def dvc_repo() -> Iterator[Any]:
    """DVC's view of this project with an up-to-date `code`; an error of DVC's is one line."""
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    try:
        with Repo(_wait_for_lock=True) as repo:
            refresh_code(repo)
            yield repo
    except DvcException as error:
        what, fix = " ".join(str(error).split())[:300], "Fix it; `python -m posttrain check` may say more"
        raise PipelineError(what=what, where="dvc.yaml", fix=fix) from error


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
    """A line for each stage that has to run by itself, with what has to run after it."""
    with dvc_repo() as repo:
        graph, changed = repo.index.graph, repo.status()
    from networkx import ancestors, lexicographical_topological_sort

    names = {stage: stage.addressing for stage in graph}
    lock, settings = recorded(), read_params()
    causes = {name: [*_causes(name, changed.get(name, []), lock, settings)] for name in names.values()}
    lines = []
    for stage in lexicographical_topological_sort(graph.reverse(), key=names.__getitem__):
        # DVC's edges point from a stage to what it depends on.
        after = sorted(names[one] for one in ancestors(graph, stage) if not causes[names[one]])
        if name_causes := causes[names[stage]]:
            then = f"; then stale because of it: {', '.join(after)}" if after else ""
            lines.append(f"{names[stage]}: {'; '.join(name_causes)}{then}")
    return "\n".join(lines) or "nothing is stale"


def accepted_code(record: Mapping[str, Any]) -> Code | None:
    """The code of a run's result: the code that it used with the changes accepted since; None if not recorded."""
    used = record.get("code")
    if not isinstance(used, Mapping):
        return None
    found: Code = {kind: dict(used[kind]) for kind in used}
    for one in record.get("accepted", ()):
        for kind, changes in one["changed"].items():
            for name, (_, new) in changes.items():
                if new is None:
                    found[kind].pop(name, None)
                else:
                    found[kind][name] = new
    return found


def code_changes(name: str) -> list[str]:
    """The changes of a stage's code since its result was made or accepted, as text."""
    old, new = accepted_code(read_record(record_path(name))), read_code(code_path(name))
    return differences(old, new) if old and new else ["its code changed"]


def _causes(name: str, reasons: list[Any], lock: Mapping[str, Any], settings: Mapping[str, Any]) -> Iterator[str]:
    """Why one stage is stale by itself, not because of an upstream stage."""
    if reasons and name not in lock:
        yield "never ran"
        return
    outs = {out["path"] for entry in lock.values() for out in entry.get("outs", [])} - {CODE}
    for reason in reasons:
        if not isinstance(reason, Mapping):
            yield str(reason)
            continue
        for path, how in reason.get("changed deps", {}).items():
            if path == str(code_path(name)):
                yield _listed(code_changes(name))
            elif isinstance(how, Mapping):
                yield _listed(_params(path, how, lock[name], settings))
            elif not any(Path(path).is_relative_to(out) or Path(out).is_relative_to(path) for out in outs):
                yield f"{path} {how}"
        for path, how in reason.get("changed outs", {}).items():
            yield f"its output {path} is {'missing' if how == 'deleted' else how}"


def _params(file: str, keys: Mapping[str, Any], entry: Mapping[str, Any], settings: Mapping[str, Any]) -> list[str]:
    """The parameters that changed, with their old and new values."""
    from posttrain.report.lineage import flattened  # it imports polars, which flows must not

    words = []
    for key in keys:
        old, new = entry.get("params", {}).get(file, {}).get(key), _at(settings, key)
        before, after = flattened(old, key), flattened(new, key)
        words += [
            f"params {one} {before.get(one, 'not set')} -> {after.get(one, 'not set')}"
            for one in [*before, *(one for one in after if one not in before)]
            if before.get(one) != after.get(one)
        ]
    return words


def _at(settings: Any, key: str) -> Any:
    for part in key.split("."):
        settings = settings.get(part) if isinstance(settings, Mapping) else None
    return settings


def _listed(words: list[str]) -> str:
    more = f" and {len(words) - MOST} more" if len(words) > MOST else ""
    return ", ".join(words[:MOST]) + more
