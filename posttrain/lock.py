"""dvc.lock after a kill: DVC writes it in place, so one that was killed in that moment leaves a part of it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

LOCK = Path("dvc.lock")
DAMAGED = Path("dvc.lock.damaged")


def mend_lock() -> str:
    """Set a damaged dvc.lock aside and take the last commit's; what ran since is in DVC's run cache."""
    if not LOCK.exists() or _whole(LOCK.read_bytes()):
        return "dvc.lock: nothing to mend"
    os.replace(LOCK, DAMAGED)
    committed = subprocess.run(["git", "show", f"HEAD:./{LOCK}"], capture_output=True, check=False)
    if committed.returncode == 0 and _whole(committed.stdout):
        fresh = LOCK.with_suffix(".lock.tmp")
        fresh.write_bytes(committed.stdout)
        os.replace(fresh, LOCK)
    return f"dvc.lock was damaged, by a kill while DVC wrote it: set aside as {DAMAGED}; `dvc repro` restores the rest"


def _whole(text: bytes) -> bool:
    """Whether DVC would read it."""
    from dvc.schema import COMPILED_LOCKFILE_SCHEMA
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError
    from voluptuous import Invalid

    try:
        COMPILED_LOCKFILE_SCHEMA(YAML(typ="safe").load(text))
    except (YAMLError, UnicodeDecodeError, Invalid):
        return False
    return True
