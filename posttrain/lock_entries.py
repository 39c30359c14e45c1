"""The entries of dvc.lock, one per stage: reads and writes them, and settles a merge conflict between two branches."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posttrain.digests import dvc_lock
from posttrain.errors import PipelineError
from posttrain.lock import CONFLICT, LOCK, whole
from posttrain.workspace import write_text

Entries = dict[str, dict[str, Any]]


def read_entries() -> Entries:
    """The entries of dvc.lock, empty where there is no such file."""
    if not LOCK.is_file():
        return {}
    text = LOCK.read_bytes()
    if in_conflict():
        raise PipelineError(what="git left a merge conflict", where=str(LOCK), fix="Run `python -m posttrain merge`")
    if not whole(text):
        raise PipelineError(what="the file is damaged", where=str(LOCK), fix="Run `python -m posttrain repair`")
    return _parsed(text)


def in_conflict() -> bool:
    """Whether git left a merge conflict in dvc.lock."""
    return LOCK.is_file() and CONFLICT in b"\n" + LOCK.read_bytes()


def write_entries(entries: Mapping[str, Any]) -> None:
    """Put the entries into dvc.lock, as DVC writes it."""
    from dvc.utils.serialize import dumps_yaml

    with dvc_lock(Path()):
        write_text(LOCK, dumps_yaml({"schema": "2.0", "stages": dict(entries)}))


def merge_entries() -> str:
    """Settle a merge conflict in dvc.lock, stage by stage: each entry is that of the branch that changed it."""
    sides = [_side(number) for number in (1, 2, 3)]
    if sides[1] is None or sides[2] is None:
        return f"git has no merge conflict in {LOCK}"
    before, ours, theirs = ({} if one is None else one for one in sides)
    merged = {}
    for name in ours | theirs:
        mine = ours.get(name)
        entry = theirs.get(name) if mine == before.get(name) else mine
        if entry is not None:
            merged[name] = entry
    write_entries(merged)
    both = [name for name in merged if merged[name] not in (before.get(name), theirs.get(name)) and name in theirs]
    again = f" Both branches changed {', '.join(both)}: `dvc repro` runs them again where needed." if both else ""
    return (
        f"{LOCK}: {len(merged)} entries of both branches.{again}\n"
        "Next: python -m posttrain check; dvc repro; git add dvc.lock; git commit"
    )


def _side(number: int) -> Entries | None:
    """The entries of git's index: 1 for the common ancestor, 2 for this branch, 3 for the other one."""
    done = subprocess.run(["git", "show", f":{number}:./{LOCK}"], capture_output=True, check=False)
    return _parsed(done.stdout) if done.returncode == 0 and whole(done.stdout) else None


def _parsed(text: bytes) -> Entries:
    from dvc.utils.serialize import parse_yaml

    entries: Entries = parse_yaml(text.decode(), str(LOCK)).get("stages") or {}
    return entries
