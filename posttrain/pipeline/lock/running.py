"""Find the running stages from the file in which DVC processes list the outputs they are writing."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, Final

import psutil

from posttrain.pipeline.lock.graph import Pipeline

RWLOCK: Final = Path(".dvc/tmp/rwlock")
TRIES: Final = 20
PAUSE_S: Final = 0.05


def running_stages(pipeline: Pipeline, root: Path = Path()) -> dict[str, int]:
    """Return stage -> the DVC process that runs it, without processes that have ended."""
    stages = {}
    for path, holder in _written(root).items():
        stage = pipeline.makers.get(os.path.relpath(path, root.resolve()))
        if stage and psutil.pid_exists(int(holder["pid"])):
            stages[stage] = int(holder["pid"])
    return dict(sorted(stages.items()))


def _written(root: Path) -> dict[str, dict[str, Any]]:
    """Return path -> the process that writes it. DVC writes the file in place, so an incomplete one is read again."""
    for _ in range(TRIES):
        try:
            return dict(json.loads((root / RWLOCK).read_bytes()).get("write") or {})
        except FileNotFoundError:
            return {}
        except (ValueError, AttributeError):
            time.sleep(PAUSE_S)
    return {}
