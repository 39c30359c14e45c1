"""Repair DVC's own files after a kill, and keep its site cache inside this clone."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

from posttrain.errors import PipelineError
from posttrain.files import user_cache, write_text
from posttrain.pipeline.by_name import is_sweep
from posttrain.pipeline.lock.dvc_index import remove_damaged
from posttrain.pipeline.lock.git import git_or_none
from posttrain.pipeline.lock.lock_shape import lock_data
from posttrain.pipeline.params.parsed import parsed_once
from posttrain.pipeline.workspace import main_root

LOCK = Path("dvc.lock")
DAMAGED = Path("dvc.lock.damaged")
RWLOCKS = (Path(".dvc/tmp/rwlock"), Path(".dvc/tmp/exps/rwlock"))
"""Files in which running DVC processes list what they read and write: outputs, and references of experiments."""
OUTPUTS = ("completions", "data", "metrics", "models", "plots", "records", "report", "results", "rollouts")
CLOCK_S = 2.0
"""The largest difference between the clocks of the kernel and the file system."""
SITE_CACHE = Path(".dvc/tmp/site")
"""The folder from which DVC unpickles files. Any user of the machine can write to its default, /var/tmp/dvc."""
SITE_SETTING = re.compile(rf"site_cache_dir = \"?(/.+/{re.escape(str(SITE_CACHE))})\"?")
USER_SITE_CACHE = "posttrain/site"
COPIES = Path(".dvc/tmp/exps/standalone")
"""The folders where `dvc exp run --temp` and sweeps copy the workspace for each experiment."""
LINK_TEST = re.compile(r"\.[\w-]{22}\.tmp")
"""The names of DVC's link-test files and unfinished copies."""
CACHED = (".", "files/md5", "files/md5/*", "runs/*/*")
"""The folders of DVC's cache that can contain such files."""
OLD_S = 3600.0
"""The age at which such a file in the cache is removed. Another clone that shares the cache may be writing it."""


def repair_lock(root: Path) -> str:
    """Move a damaged dvc.lock aside, and remove locks and files of dead processes. Return a line for each repair.

    It holds the locks under which DVC writes these files, so a running DVC is not disturbed.
    """
    from dvc.lock import make_lock

    if not (root / ".dvc").is_dir():
        raise PipelineError(what="no DVC project here", where=str(root), fix="Run in the project's root folder")
    with ExitStack() as held:
        for lock in (Path(".dvc/tmp/lock"), *(rwlock.with_suffix(".lock") for rwlock in RWLOCKS)):
            folder = (root / lock).parent
            folder.mkdir(parents=True, exist_ok=True)
            held.enter_context(make_lock(str(root / lock), tmp_dir=str(folder), wait=True))
        _set_site_cache(root)
        repairs = [_repair_lock_file(root), *(_repair_rwlock(root, file) for file in RWLOCKS), *_remove_copies(root)]
        return "\n".join(line for line in [*repairs, *_remove_link_tests(root), *remove_damaged(root)] if line)


def follow_move(root: Path) -> None:
    """Set this folder's site cache if the settings still point to the folder that it was copied or moved from.

    DVC does not support a relative path, because it would depend on where DVC is started. DVC's copies for experiments
    are skipped, and so is every folder if Python lacks DVC, e.g. in a tracker's environment.
    """
    settings = root / ".dvc/config.local"
    if main_root() not in (Path(), root):
        return
    named = SITE_SETTING.search(settings.read_text(encoding="utf-8")) if settings.is_file() else None
    if named and str(root).isascii() and Path(named[1]) != root / SITE_CACHE and find_spec("dvc"):
        _set_site_cache(root)


def _set_site_cache(root: Path) -> None:
    """Make every DVC in this clone use a private site cache, unless another one is configured."""
    from dvc.config import Config

    ours = _site_cache(root.resolve())
    ours.mkdir(mode=0o700, parents=True, exist_ok=True)
    ours.chmod(0o700)
    config = Config(str(root / ".dvc"))
    local = config.read("local")
    named = str(local.get("core", {}).get("site_cache_dir", ""))
    # One with the same end is from before the clone was moved or copied.
    if named != str(ours) and (not named or named.endswith(f"/{SITE_CACHE}") or f"/{USER_SITE_CACHE}/" in named):
        with config.edit("local") as settings:
            settings.setdefault("core", {})["site_cache_dir"] = str(ours)


def _site_cache(root: Path) -> Path:
    """Return the folder in this clone; or in the user's cache, because DVC's settings only support ASCII paths."""
    if str(root).isascii():
        return root / SITE_CACHE
    ours = user_cache().parent / USER_SITE_CACHE / hashlib.md5(str(root).encode(), usedforsecurity=False).hexdigest()
    if not str(ours).isascii():
        fix = "Set XDG_CACHE_HOME to a folder with an ASCII path, or move the project to such a folder"
        raise PipelineError(what="DVC needs a cache folder whose path is ASCII", where=str(ours), fix=fix)
    return ours


def _repair_lock_file(root: Path) -> str:
    """Replace a damaged dvc.lock by the last commit's. Later runs are in DVC's run cache."""
    lock = root / LOCK
    if not lock.exists() or in_conflict(lock) or lock_entries(lock.read_bytes()) is not None:
        return ""
    os.replace(lock, root / DAMAGED)
    committed = git_or_none("show", f"HEAD:./{LOCK}", root=root)
    if committed is not None and lock_entries(committed) is not None:
        write_text(lock, committed.decode())
    return f"dvc.lock was damaged, by a kill while DVC wrote it: set aside as {DAMAGED}; `dvc repro` restores the rest"


def _repair_rwlock(root: Path, name: Path) -> str:
    from dvc.rwlock import SCHEMA
    from voluptuous import Invalid

    file = root / name
    try:
        held = SCHEMA(json.loads(file.read_bytes()))
        written = file.stat().st_mtime
    except FileNotFoundError:
        return ""
    except (ValueError, Invalid):
        file.unlink()
        return f"{name} was damaged, by a kill while DVC wrote it: removed, as it is not needed"
    alive: dict[str, dict[str, Any]] = {"read": {}, "write": {}}
    gone = []
    for kind, path, holder in _holders(held):
        if not _holds(holder, written):
            gone.append(f"{holder['pid']} ({holder['cmd'][-100:]})")
        elif kind == "write":
            alive[kind][path] = holder
        else:
            alive[kind].setdefault(path, []).append(holder)
    if not gone:
        return ""
    write_text(file, json.dumps(alive))
    return f"{name} named processes that have ended: {', '.join(sorted(set(gone)))}: removed from it"


def _holders(held: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield kind, path and process of every lock. A path has many readers or one writer."""
    for path, readers in held["read"].items():
        for reader in readers:
            yield "read", path, reader
    for path, writer in held["write"].items():
        yield "write", path, writer


def _holds(holder: dict[str, Any], written: float) -> bool:
    """Tell whether the DVC process with a lock is still running. Another process may have its id now."""
    try:
        process = psutil.Process(int(holder["pid"]))
        if process.status() == psutil.STATUS_ZOMBIE or process.create_time() > written + CLOCK_S:
            return False
        last = process.cmdline()[-1]
    except (psutil.NoSuchProcess, IndexError):
        return False
    except psutil.AccessDenied:
        return True
    # DVC records its sys.argv, which begins with the path of a script or module: only its end can be compared.
    return holder["cmd"].endswith(last) or last.replace(".", "/") in holder["cmd"]


def _remove_copies(root: Path) -> list[str]:
    """Remove the experiments' copies of the workspace, if no experiment is running."""
    copies = root / COPIES
    left = list(copies.glob("tmp*"))
    parents = psutil.Process().parents()  # a sweep repairs before it makes copies
    if not left or any(_runs_experiment(process, root) for process in psutil.process_iter() if process not in parents):
        return []
    shutil.rmtree(copies)
    return [f"{COPIES / folder.name} was left by an experiment that was killed: removed" for folder in sorted(left)]


def _runs_experiment(process: psutil.Process, root: Path) -> bool:
    try:
        words = process.cmdline()
        place = Path(process.cwd())
    except psutil.AccessDenied:
        return False  # of another user, who cannot write here
    except psutil.NoSuchProcess:
        return False
    at_work = "exp" in words or is_sweep(words)
    return place.is_relative_to(root / COPIES) or (at_work and place.is_relative_to(root))


def _remove_link_tests(root: Path) -> list[str]:
    temporary = [file for name in OUTPUTS for file in (root / name).rglob(".*.tmp") if LINK_TEST.fullmatch(file.name)]
    until = time.time() - OLD_S
    cached = [file for where in CACHED for file in (root / ".dvc/cache").glob(f"{where}/.*.tmp")]
    temporary += [file for file in cached if LINK_TEST.fullmatch(file.name) and file.lstat().st_mtime < until]
    for file in temporary:
        file.unlink()
    return [f"{file.relative_to(root)} was left by a DVC that was killed: removed" for file in temporary]


def in_conflict(lock: Path) -> bool:
    """Tell whether dvc.lock has a git merge conflict, which a person must resolve."""
    return lock.is_file() and b"\n<<<<<<< " in b"\n" + lock.read_bytes()


def lock_entries(text: bytes) -> dict[str, dict[str, Any]] | None:
    """Return the entries of a dvc.lock by stage; None if DVC cannot read it."""
    try:
        lock = lock_data(text, str(LOCK))
    except PipelineError:
        return None
    entries: dict[str, dict[str, Any]] = lock.get("stages", {})
    key = f"DVC {version('dvc')}\n".encode() + text
    return entries if parsed_once(key, f"{LOCK}.fits", lambda: _fits_dvc(lock, entries)) else None


def _fits_dvc(lock: Mapping[str, Any], entries: Mapping[str, Mapping[str, Any]]) -> bool:
    """Tell whether a dvc.lock has the form that DVC reads."""
    from dvc.schema import COMPILED_LOCKFILE_SCHEMA
    from dvc_data.hashfile.hash import algorithms_available
    from voluptuous import Invalid

    try:
        COMPILED_LOCKFILE_SCHEMA(lock or None)
    except Invalid:
        return False
    files = [file for entry in entries.values() for file in (*entry.get("deps", []), *entry.get("outs", []))]
    known = {*algorithms_available, "etag", "checksum"}
    return all(file.get("hash", "md5") in known for file in files)
