"""Compare the disk with DVC's records: `posttrain repair verify`, and a quick part of it in `repair`.

DVC trusts read-only files in its cache and never reads them again, and it does not fsync its files. So it would accept
a flipped bit, or a file truncated by a power failure, as a stage's result.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from posttrain.errors import PipelineError, PosttrainError, shortened
from posttrain.files import file_digest, sync
from posttrain.pipeline.lock import repair_dvc
from posttrain.pipeline.lock.cache_gaps import fill, restore
from posttrain.pipeline.lock.digests import DIGESTS_FILE, LOCK, Digests, boot, dvc_lock
from posttrain.pipeline.lock.dvc_index import readable_index
from posttrain.pipeline.lock.fsync import cache_folder, cached
from posttrain.pipeline.lock.lock_check import forget_mismatched, undo_interrupted_accept
from posttrain.pipeline.lock.mixed_entries import remove_contradicted

CHECKED: Final = Path(".dvc/tmp/checked_boot")
"""The file with the boot id of the last check of DVC's files."""
READ_ONLY: Final = 0o444
WRITABLE: Final = 0o644
EMPTY: Final = hashlib.md5(b"", usedforsecurity=False).hexdigest()
"""The object name of an empty file, which may be empty."""
AGAIN: Final = "If something is missing now, `dvc repro` makes it again (`dvc pull` downloads it if a remote has it)"


def repair(root: Path) -> str:
    """Repair DVC's files after a kill, a power cut or an edit, without reading the cache. Return lines about it."""
    repaired = repair_dvc.repair_lock(root)
    if repair_dvc.in_conflict(root / LOCK):
        return repaired
    lines = [repaired, *undo_interrupted_accept(root), *forget_mismatched(root), *remove_contradicted(root)]
    checked = root / CHECKED
    if not checked.is_file() or checked.read_text(encoding="utf-8") != boot():
        lines += _recheck_cache(root)
        checked.write_text(boot(), encoding="utf-8")
        sync(checked)
    with contextlib.suppress(PosttrainError):  # of a dvc.yaml or params.yaml that is not valid `check` says more
        lines += fill(root)
    return "\n".join(line for line in lines if line)


def verify(root: Path) -> str:
    """Read all files that DVC has cached or recorded. Remove damaged files, or restore them from the workspace."""
    lines = [line for line in repair(root).splitlines() if line]
    (root / DIGESTS_FILE).unlink(missing_ok=True)
    cache = cache_folder(root)
    with _locked_repo(root) as repo:
        removed, count = _remove_damaged(cache)
        entries = _remove_damaged_runs(Path(repo.stage_cache.cache_dir))
        outs, digests = _outs(repo), Digests(root)
        lines += _touch_changed(root, outs, digests)
        owners = {file: f"{out['path']} of {out['stage']}" for out in outs for file in cached(cache, out)}
        intact = [out for out in outs if out["cached"] and digests.of(out["path"]) == out["md5"]]
        refilled = {file for out in intact for file in restore(root, cache, out, digests)}
        digests.keep()
    for file in removed:
        name, what = f"{file.parent.name}{file.name}", owners.get(file, "no present output")
        end = "copied again from the workspace" if file in refilled else "removed"
        lines.append(f"DVC's cache, {name} ({what}): it was damaged, {end}")
    lines += [f"DVC's run cache, {name}: it was damaged, removed" for name in entries]
    lines += list(_missing(root, cache, outs))
    if lines:
        raise PipelineError(what="\n".join(["these faults were found:", *lines]), where=str(root.absolute()), fix=AGAIN)
    return f"{count} objects in DVC's cache and {len(outs)} outputs of dvc.lock are as they were recorded"


def _missing(root: Path, cache: Path, outs: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a line for each recorded output that the workspace or DVC's cache lacks."""
    for out in outs:
        here = (root / out["path"]).exists()
        is_cached = not out["cached"] or all(file.is_file() for file in cached(cache, out))
        if not here and is_cached:
            restored = f"`{'dvc' if out['cached'] else 'git'} checkout {out['path']}` restores it"
            yield f"{out['path']} of {out['stage']} is missing: {restored}"
        elif not is_cached:
            yield f"{out['path']} of {out['stage']} is missing in DVC's cache{'' if here else ' and in the workspace'}"


def _recheck_cache(root: Path) -> list[str]:
    """Make DVC read its cache again after a reboot, because data that was not on the disk yet is lost."""
    (root / DIGESTS_FILE).unlink(missing_ok=True)
    foreign = 0
    for file in _objects(cache_folder(root)):
        try:
            file.chmod(WRITABLE)  # DVC trusts read-only files
            os.utime(file)
        except PermissionError:
            foreign += 1
    with _locked_repo(root) as repo:
        lines = _remove_emptied(root, Path(repo.stage_cache.cache_dir))
        lines += _touch_changed(root, _outs(repo), Digests(root))
    if foreign:
        lines.append(f"{foreign} objects in DVC's cache belong to others: `posttrain repair verify` reads them")
    return lines


@contextlib.contextmanager
def _locked_repo(root: Path) -> Iterator[Any]:
    """Yield DVC's repository object while no other DVC process uses the project."""
    from dvc.exceptions import DvcException
    from dvc.lock import LockError
    from dvc.repo import Repo
    from dvc.rwlock import rwlock

    with readable_index():
        repo: Any = Repo(str(root.absolute()))
    with contextlib.closing(repo), readable_index():
        try:
            paths = [out.fs_path for out in repo.index.outs]
            with (
                dvc_lock(root),
                rwlock(str(root.absolute() / DIGESTS_FILE.parent), repo.fs, "posttrain", [], paths, False),
            ):
                yield repo
        except DvcException as error:
            busy = isinstance(error, LockError)
            fix = "Wait until DVC has ended, or stop it" if busy else "Fix it; `posttrain check` shows more"
            raise PipelineError(what=shortened(str(error), 300), where=str(root), fix=fix) from error


def _outs(repo: Any) -> list[dict[str, Any]]:
    """Return the outputs that DVC has recorded for the present stages, in dvc.lock's form."""
    return [
        {
            "path": os.path.relpath(out.fs_path, repo.root_dir),
            "md5": out.hash_info.value,
            "stage": out.stage.addressing,
            "cached": out.use_cache,
        }
        for out in repo.index.outs
        if out.hash_info and out.hash_info.name == "md5" and out.is_in_repo
    ]


def _objects(cache: Path) -> list[Path]:
    """Return all files in the folders of the cache's objects."""
    return sorted(file for file in cache.glob("??/*") if file.is_file())


def _remove_emptied(root: Path, runs: Path) -> list[str]:
    """Remove run cache entries and objects that a power cut emptied. DVC may not check them."""
    files = [*_objects(cache_folder(root)), *sorted(runs.glob("??/*/*"))]
    emptied = [file for file in files if not file.stat().st_size and f"{file.parent.name}{file.name}" != EMPTY]
    for file in emptied:
        _remove_entry(file)
    return [f"{os.path.relpath(file, root)} was emptied by a power cut: removed" for file in emptied]


def _remove_damaged(cache: Path) -> tuple[list[Path], int]:
    """Remove objects whose digest does not match their name. Return them, and the number of all objects."""
    objects = _objects(cache)
    damaged = [file for file in objects if file_digest(file) != f"{file.parent.name}{file.name}".removesuffix(".dir")]
    for file in damaged:
        file.unlink()
    return damaged, len(objects)


def _remove_damaged_runs(folder: Path) -> list[str]:
    """Remove run cache entries whose digest does not match their name."""
    damaged = [file for file in sorted(folder.glob("??/*/*")) if _run_digest(file) != file.name]
    for file in damaged:
        _remove_entry(file)
    return [file.name for file in damaged]


def _remove_entry(file: Path) -> None:
    """Remove a file, and its folder if it becomes empty, because DVC fails on a folder without an entry."""
    file.unlink()
    with contextlib.suppress(OSError):
        file.parent.rmdir()


def _run_digest(file: Path) -> str:
    from dvc.exceptions import DvcException
    from dvc.stage.cache import _get_cache_hash
    from dvc.utils.serialize import load_yaml

    try:
        return str(_get_cache_hash(load_yaml(str(file))))
    except (DvcException, ValueError, TypeError, AttributeError):  # it is not a valid entry
        return ""


def _touch_changed(root: Path, outs: list[dict[str, Any]], digests: Digests) -> list[str]:
    """Touch outputs that differ from the record, so that DVC reads them again. It compares their times."""
    lines = []
    for out in outs:
        present = digests.of(out["path"])
        if present is None or present == out["md5"]:
            continue
        place = root / out["path"]
        for file in (place / name for name in digests.marks(out["path"])):
            os.utime(file)
        what = "empty" if place.is_file() and not place.stat().st_size else "not as recorded"
        lines.append(f"{out['path']} of {out['stage']} is {what}")
    return lines
