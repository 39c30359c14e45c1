"""What a kill left of DVC's own files: it writes them in place, so a kill in that moment leaves a part of one."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

LOCK = Path("dvc.lock")
DAMAGED = Path("dvc.lock.damaged")
RWLOCK = Path(".dvc/tmp/rwlock")
"""Who of the DVC processes that run reads and writes what."""


def mend() -> str:
    """Set a damaged dvc.lock aside and remove a damaged rwlock; what was mended, a line each."""
    return "\n".join(line for line in (_mend_lock(), mend_rwlock(Path())) if line)


def _mend_lock() -> str:
    """The last commit's dvc.lock in its place; what ran since is in DVC's run cache."""
    if not LOCK.exists() or _whole(LOCK.read_bytes()):
        return ""
    os.replace(LOCK, DAMAGED)
    committed = subprocess.run(["git", "show", f"HEAD:./{LOCK}"], capture_output=True, check=False)
    if committed.returncode == 0 and _whole(committed.stdout):
        fresh = LOCK.with_suffix(".lock.tmp")
        fresh.write_bytes(committed.stdout)
        os.replace(fresh, LOCK)
    return f"dvc.lock was damaged, by a kill while DVC wrote it: set aside as {DAMAGED}; `dvc repro` restores the rest"


def mend_rwlock(root: Path) -> str:
    """Removed under the lock that DVC itself takes to write it, so that one of a DVC at work is left alone."""
    file = root / RWLOCK
    if not file.exists():
        return ""
    from dvc.lock import make_lock

    with make_lock(str(file.with_name("rwlock.lock")), tmp_dir=str(file.parent)):
        try:
            json.loads(file.read_bytes())
        except ValueError:
            file.unlink()
            return f"{RWLOCK} was damaged, by a kill while DVC wrote it: removed, as nobody needs it"
    return ""


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
