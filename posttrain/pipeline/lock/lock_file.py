"""The entries of dvc.lock, one per stage: read them, write them, and resolve merge conflicts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posttrain.errors import PipelineError
from posttrain.files import write_text
from posttrain.pipeline.lock.digests import dvc_lock
from posttrain.pipeline.lock.git import git_or_none
from posttrain.pipeline.lock.repair_dvc import LOCK, in_conflict, lock_entries

Entries = dict[str, dict[str, Any]]


def read_entries() -> Entries:
    """Return the entries of dvc.lock, empty if the file is missing."""
    if not LOCK.is_file():
        return {}
    if in_conflict(LOCK):
        raise PipelineError(what="git left a merge conflict", where=str(LOCK), fix="Run `posttrain repair merge`")
    if (entries := lock_entries(LOCK.read_bytes())) is None:
        raise PipelineError(what="the file is damaged", where=str(LOCK), fix="Run `posttrain repair`")
    return entries


def write_entries(entries: Mapping[str, Any], root: Path = Path()) -> None:
    """Write the entries to dvc.lock in DVC's format. The caller must have read them under the same `dvc_lock`."""
    from dvc.utils.serialize import dumps_yaml

    write_text(root / LOCK, dumps_yaml({"schema": "2.0", "stages": dict(entries)}))


def merge_entries() -> str:
    """Resolve a merge conflict in dvc.lock stage by stage: each entry comes from the branch that changed it."""
    with dvc_lock(Path()):
        return _merge_entries()


def _merge_entries() -> str:
    if not in_conflict(LOCK):
        return f"{LOCK} has no merge conflict"
    before, ours, theirs = (_side(number) for number in (1, 2, 3))
    if ours is None or theirs is None:
        fix = "Choose one version with `git checkout --ours dvc.lock`, and run `dvc repro`"
        raise PipelineError(what="git no longer has the versions of both branches", where=str(LOCK), fix=fix)
    before = before or {}
    merged, both = {}, []
    for name in ours | theirs:
        old, our, other = before.get(name), ours.get(name), theirs.get(name)
        if (entry := other if our == old else our) is not None:
            merged[name] = entry
        if old != our != other != old:
            both.append(name)
    write_entries(merged)
    again = f" Both branches changed {', '.join(both)}: `dvc repro` runs it again if needed." if both else ""
    return (
        f"{LOCK}: {len(merged)} entries of both branches.{again}\n"
        "Next: posttrain check; dvc repro; git add params.yaml dvc.lock code report; git commit"
    )


def _side(number: int) -> Entries | None:
    """Return the entries in git's index: 1 for the common ancestor, 2 for this branch, 3 for the other."""
    text = git_or_none("show", f":{number}:./{LOCK}")
    return None if text is None else lock_entries(text)
