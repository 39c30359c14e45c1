"""Check that all hosts of a run share code, settings, inputs and the checkpoint folder."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from typing import Any, Final

from posttrain.distributed import world
from posttrain.errors import PipelineError
from posttrain.files import write_text
from posttrain.pipeline.lock import inputs
from posttrain.pipeline.lock.graph import changed
from posttrain.pipeline.params.yaml_files import read_yaml
from posttrain.pipeline.processes.schedulers import LOCAL
from posttrain.pipeline.workspace import PARAMS_FILE, checkpoint_path

MOST: Final = 4
"""The most differences between two hosts in an error."""


def check_hosts(stage: str) -> None:
    """Reject hosts that differ. The first process of each host reports its state."""
    mark = checkpoint_path(".held") / world.from_first(lambda: secrets.token_hex(8))
    if world.is_rank_zero():
        write_text(mark, "")
    world.wait_for_all()
    used = inputs.used() or {"params": {PARAMS_FILE: read_yaml(PARAMS_FILE)}}
    hosts = world.gathered([used, mark.exists()] if os.environ.get(LOCAL, "0") == "0" else None)
    mark.unlink(missing_ok=True)
    for number, host in enumerate(hosts, 1):
        if host and (wrong := differences(hosts[0][0], host[0], number)):
            what = f"process {number} differs from process 1: {', '.join(wrong[:MOST])}"
            fix = "Use the same folder, or the same commit and `dvc pull`, on all hosts"
            raise PipelineError(what=what, where=stage, fix=fix)
        if host and not host[1]:
            what = (
                f"process {number} has another folder {checkpoint_path('')}, but all processes must write their "
                "checkpoints to one"
            )
            fix = "Put the project, or that folder, on a file system that all hosts share"
            raise PipelineError(what=what, where=stage, fix=fix)


def differences(first: Mapping[str, Any], other: Mapping[str, Any], number: int) -> list[str]:
    """Return the differences between process `number` and process 1, as text."""
    changes = sorted(changed(first, other, "none"), key=lambda change: (change[0][0] != "params", change[0]))
    lines = []
    for (kind, *keys), ours, theirs in changes:
        values = f" ({ours} in process 1, {theirs} in process {number})"
        shown = "" if kind == "inputs" or "files" in keys else values[:200]
        lines.append(f"{' '.join(keys or [kind])}{shown}")
    return lines
