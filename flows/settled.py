"""Check without DVC that no stage must run. For 1,000 runs this takes seconds; DVC takes a minute."""

from __future__ import annotations

import os
from pathlib import Path

from posttrain.pipeline.lock.code_manifest import CODE, is_current
from posttrain.pipeline.lock.digests import Digests
from posttrain.pipeline.lock.graph import DVC_YAML
from posttrain.pipeline.lock.reasons import Reasons
from posttrain.pipeline.lock.running import running_stages

from .graph import Stage, is_posttrain_pipeline, needs_of

NOT_WALKED = {".git", ".dvc", ".venv", "__pycache__"}


def settled(root: Path) -> list[Stage] | None:
    """Return all stages, upstream first, if none must run; None if one must run or only DVC can decide.

    `root` must be the working directory.
    """
    if not is_posttrain_pipeline(root) or has_other_files(root):
        return None
    reasons = Reasons(root)
    stages = reasons.pipeline.stages
    if any(stage.frozen or stage.always for stage in stages.values()) or running_stages(reasons.pipeline):
        return None
    if reasons.to_run(()) or not _is_code_recorded(reasons):
        return None
    reasons.keep()
    return [
        Stage(
            name=name,
            upstream=tuple(above for above in reasons.pipeline.upstream[name] if above != CODE),
            needs=needs_of(name, stages[name].meta or None),
            reasons=(),
            plots=stages[name].plots,
            metrics=stages[name].metrics,
        )
        for name in reasons.pipeline.order()
        if name != CODE
    ]


def has_other_files(root: Path) -> bool:
    """Tell whether DVC may read more than the root's dvc.yaml: another dvc.yaml, or a file of `dvc add`."""
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in NOT_WALKED]
        if any(name.endswith(".dvc") or (name == DVC_YAML and Path(folder) != root) for name in files):
            return True
    return False


def _is_code_recorded(reasons: Reasons) -> bool:
    """Tell whether the stage `code` need not run: dvc.lock has its inputs and outputs, and they fit the packages."""
    digests, entry = Digests(), reasons.lock.get(CODE, {})
    files = [*entry.get("deps", ()), *entry.get("outs", ())]
    return bool(files) and all(digests.of(file["path"]) == file["md5"] for file in files) and is_current()
