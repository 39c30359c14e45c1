"""What a kill of DVC left of its own files: it writes some in place, and tries links beside the outputs."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

from posttrain.errors import PipelineError

LOCK = Path("dvc.lock")
DAMAGED = Path("dvc.lock.damaged")
CONFLICT = b"\n<<<<<<< "
"""Of a merge: no kill did that, and a person has to choose."""
RWLOCK = Path(".dvc/tmp/rwlock")
"""Who of the DVC processes that run reads and writes what."""
OUTPUTS = ("data", "metrics", "models", "plots", "records", "report", "results")
TRIAL = re.compile(r"\.[\w-]{22}\.tmp")
"""What DVC calls the files with which it finds out whether links work."""


def mend(root: Path) -> str:
    """Set a damaged dvc.lock aside, remove a damaged rwlock and forgotten files; what was mended, a line each.

    All this under the locks that DVC takes to write them, so that those of a DVC at work are left alone.
    """
    from dvc.lock import make_lock

    if not (root / ".dvc").is_dir():
        raise PipelineError(what="no DVC project here", where=str(root), mend="Run in the project's root folder")
    folder = root / ".dvc/tmp"
    folder.mkdir(exist_ok=True)
    whole, readers = (make_lock(str(folder / name), tmp_dir=str(folder), wait=True) for name in ("lock", "rwlock.lock"))
    with whole, readers:
        return "\n".join(line for line in (_mend_lock(root), _mend_rwlock(root), _remove_trials(root)) if line)


def _mend_lock(root: Path) -> str:
    """The last commit's dvc.lock in its place; what ran since is in DVC's run cache."""
    lock = root / LOCK
    if not lock.exists() or CONFLICT in (text := lock.read_bytes()) or _whole(text):
        return ""
    os.replace(lock, root / DAMAGED)
    committed = subprocess.run(["git", "show", f"HEAD:./{LOCK}"], cwd=root, capture_output=True, check=False)
    if committed.returncode == 0 and _whole(committed.stdout):
        fresh = lock.with_suffix(".lock.tmp")
        fresh.write_bytes(committed.stdout)
        os.replace(fresh, lock)
    return f"dvc.lock was damaged, by a kill while DVC wrote it: set aside as {DAMAGED}; `dvc repro` restores the rest"


def _mend_rwlock(root: Path) -> str:
    file = root / RWLOCK
    try:
        json.loads(file.read_bytes())
    except FileNotFoundError:
        return ""
    except ValueError:
        file.unlink()
        return f"{RWLOCK} was damaged, by a kill while DVC wrote it: removed, as nobody needs it"
    return ""


def _remove_trials(root: Path) -> str:
    beside = [file for name in OUTPUTS for file in (root / name).rglob(".*.tmp") if TRIAL.fullmatch(file.name)]
    for file in beside:
        file.unlink()
    return "".join(f"{file.relative_to(root)} was left by a DVC that was killed: removed\n" for file in beside).rstrip()


def _whole(text: bytes) -> bool:
    """Whether DVC would read it."""
    from dvc.schema import COMPILED_LOCKFILE_SCHEMA
    from dvc_data.hashfile.hash import algorithms_available
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError
    from voluptuous import Invalid

    try:
        stages = COMPILED_LOCKFILE_SCHEMA(YAML(typ="safe").load(text)).get("stages", {}).values()
    except (YAMLError, UnicodeDecodeError, Invalid):
        return False
    files = [file for entry in stages for file in (*entry.get("deps", []), *entry.get("outs", []))]
    return all(file.get("hash", "md5") in {*algorithms_available, "etag", "checksum"} for file in files)
