"""What all hosts of a run must share: code, settings, inputs and the folder of checkpoints."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from typing import Any, Final

from posttrain.errors import PipelineError
from posttrain.params.formats import read_yaml
from posttrain.pipeline import inputs
from posttrain.processes import world
from posttrain.processes.schedulers import LOCAL
from posttrain.workspace import PARAMS_FILE, checkpoint_path, write_text

MOST: Final = 4
"""Differences between two hosts that an error names."""


def check_hosts(stage: str) -> None:
    """Refuse hosts that differ; the first process of each says what it has."""
    mark = checkpoint_path(".held") / world.from_first(lambda: secrets.token_hex(8))
    if world.is_rank_zero():
        write_text(mark, "")
    world.wait_for_all()
    used = inputs.used() or {"params": {PARAMS_FILE: read_yaml(PARAMS_FILE)}}
    hosts = world.gathered([used, mark.exists()] if os.environ.get(LOCAL, "0") == "0" else None)
    mark.unlink(missing_ok=True)
    for number, host in enumerate(hosts, 1):
        if host and (wrong := differences(hosts[0][0], host[0], number)):
            what = f"process {number} has something else than process 1: {', '.join(wrong[:MOST])}"
            fix = "Use the same folder, or the same commit and `dvc pull`, on all hosts"
            raise PipelineError(what=what, where=stage, fix=fix)
        if host and not host[1]:
            what = f"process {number} has another folder {checkpoint_path('')}, and each writes its part of checkpoints"
            fix = "Put the project, or that folder, on a file system that all hosts share"
            raise PipelineError(what=what, where=stage, fix=fix)


def differences(first: Mapping[str, Any], other: Mapping[str, Any], number: int) -> list[str]:
    """Return what process `number` does not share with process 1, in words."""
    ours, theirs = dict(_flat(first)), dict(_flat(other))
    found = []
    for key in sorted(ours.keys() | theirs.keys(), key=lambda parts: (parts[0] != "params", parts)):
        if ours.get(key) != theirs.get(key):
            kind, *path = key
            values = f" ({ours.get(key, 'none')} in process 1, {theirs.get(key, 'none')} in process {number})"
            shown = "" if kind == "inputs" or "files" in path else values[:200]
            found.append(f"{' '.join(path)}{shown}")
    return found


def _flat(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, (*path, str(key)))
    else:
        yield path, value
