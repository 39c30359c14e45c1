"""Compares the disk with what DVC has recorded: `posttrain repair verify`, and a quick part of it in `repair`.

DVC trusts a read-only file in its cache and never reads it again, and does not fsync its files. So a flipped bit
or a file cut off by a power failure would pass for the result of a stage.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from posttrain.errors import PipelineError
from posttrain.measure.record import read_record
from posttrain.pipeline import repair_dvc
from posttrain.pipeline.digests import KEPT, LOCK, Digests, boot, dvc_lock, file_digest, folder_bytes, recorded
from posttrain.pipeline.fsync import cache_folder, cached, object_path, sync
from posttrain.pipeline.lock_check import forget_mismatched, undo_interrupted_accept, unused_inputs
from posttrain.workspace import atomic_path

CHECKED: Final = Path(".dvc/tmp/checked_boot")
"""The boot id at the last check of DVC's files."""
READ_ONLY: Final = 0o444
WRITABLE: Final = 0o644
EMPTY: Final = hashlib.md5(b"", usedforsecurity=False).hexdigest()
"""The name of the object that is empty rightly."""
AGAIN: Final = "`dvc repro` makes again what is missing now (`dvc pull` gets it, where a remote has it)"


def repair(root: Path) -> str:
    """Fix what a kill, a power cut or an edit left in DVC's files, without reading the cache; a line for each fix."""
    repaired = repair_dvc.repair_lock(root)
    if repair_dvc.in_conflict(root / LOCK):
        return repaired
    lines = [repaired, *undo_interrupted_accept(root), *forget_mismatched(root)]
    checked = root / CHECKED
    if not checked.is_file() or checked.read_text(encoding="utf-8") != boot():
        lines += _recheck_cache(root)
        checked.write_text(boot(), encoding="utf-8")
        sync(checked)
    return "\n".join(line for line in lines if line)


def verify(root: Path) -> str:
    """Read all that DVC has cached and recorded; damaged files are removed, or restored from an intact workspace."""
    lines = [line for line in repair(root).splitlines() if line]
    (root / KEPT).unlink(missing_ok=True)
    cache = cache_folder(root)
    with _locked_repo(root) as repo:
        removed, count = _remove_damaged(cache)
        entries = _remove_damaged_runs(Path(repo.stage_cache.cache_dir))
        outs, digests = _outs(repo), Digests(root)
        lines += _touch_changed(root, outs, digests)
        owners = {file: f"{out['path']} of {out['stage']}" for out in outs for file in cached(cache, out)}
        refilled = {file for out in outs for file in _restore_from_workspace(root, cache, out, digests, removed)}
        digests.keep()
    for file in removed:
        name, what = f"{file.parent.name}{file.name}", owners.get(file, "no present output")
        end = "copied again from the workspace" if file in refilled else "removed"
        lines.append(f"DVC's cache, {name} ({what}): it was damaged, {end}")
    lines += [f"DVC's run cache, {name}: it was damaged, removed" for name in entries]
    if lines:
        raise PipelineError(what="\n".join(["this was found:", *lines]), where=str(root.absolute()), fix=AGAIN)
    whole = f"{count} objects in DVC's cache and {len(outs)} outputs of dvc.lock are as they were recorded"
    return "\n".join([whole, *_accepted(root)])


def _accepted(root: Path) -> list[str]:
    """The stages whose records contradict dvc.lock; this may come from `dvc commit`, so that nothing is removed."""
    lines = []
    for name, entry in recorded(root).items():
        records = [root / out["path"] for out in entry.get("outs", []) if out["path"].startswith("records/")]
        if wrong := [path for file in records for path in unused_inputs(entry, read_record(file))]:
            again = f"unless `dvc commit` accepted that, run it again: dvc repro --force --single-item {name}"
            lines.append(f"{name} has not used {', '.join(wrong)} as dvc.lock has it; {again}")
    return lines


def _recheck_cache(root: Path) -> list[str]:
    """Have DVC read its cache again after a reboot: what was not on the disk yet is lost."""
    (root / KEPT).unlink(missing_ok=True)
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
    """DVC's repository object while no other DVC process uses the project."""
    from dvc.exceptions import DvcException
    from dvc.lock import LockError
    from dvc.repo import Repo
    from dvc.rwlock import rwlock

    repo: Any = Repo(str(root.absolute()))
    with contextlib.closing(repo):
        try:
            paths = [out.fs_path for out in repo.index.outs]
            with dvc_lock(root), rwlock(str(root.absolute() / KEPT.parent), repo.fs, "posttrain", [], paths, False):
                yield repo
        except DvcException as error:
            busy = isinstance(error, LockError)
            fix = "Wait until DVC has ended, or end it" if busy else "Fix it; `posttrain check` says more"
            raise PipelineError(what=" ".join(str(error).split())[:300], where=str(root), fix=fix) from error


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
    """Remove the entries of DVC's run cache, and the objects, that a power cut emptied: DVC may not look at them."""
    found = [*_objects(cache_folder(root)), *sorted(runs.glob("??/*/*"))]
    emptied = [file for file in found if not file.stat().st_size and f"{file.parent.name}{file.name}" != EMPTY]
    for file in emptied:
        _remove_entry(file)
    return [f"{os.path.relpath(file, root)} was emptied by a power cut: removed" for file in emptied]


def _remove_damaged(cache: Path) -> tuple[list[Path], int]:
    """Remove the objects whose digest is not their name; these, and the number of all objects."""
    found = _objects(cache)
    damaged = [file for file in found if file_digest(file) != f"{file.parent.name}{file.name}".removesuffix(".dir")]
    for file in damaged:
        file.unlink()
    return damaged, len(found)


def _remove_damaged_runs(folder: Path) -> list[str]:
    """Remove the run cache's entries whose digest is not their name."""
    damaged = [file for file in sorted(folder.glob("??/*/*")) if _run_digest(file) != file.name]
    for file in damaged:
        _remove_entry(file)
    return [file.name for file in damaged]


def _remove_entry(file: Path) -> None:
    """Remove a file and its folder, if that is empty then: DVC fails on a run that has a folder without an entry."""
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
    """Touch the outputs that are not as recorded, so that DVC reads them again: it compares their times."""
    lines = []
    for out in outs:
        found = digests.of(out["path"])
        if found is None or found == out["md5"]:
            continue
        place = root / out["path"]
        for file in (place / name for name in digests.marks(out["path"])):
            os.utime(file)
        what = "empty" if place.is_file() and not place.stat().st_size else "not as recorded"
        lines.append(f"{out['path']} of {out['stage']} is {what}")
    return lines


def _restore_from_workspace(
    root: Path, cache: Path, out: Mapping[str, Any], digests: Digests, removed: list[Path]
) -> Iterator[Path]:
    """Copy an intact output of the workspace into the cache in place of the removed objects."""
    if not out["cached"] or digests.of(out["path"]) != out["md5"]:
        return
    place = root / out["path"]
    if place.is_file():
        contents = {out["md5"]: place}
    else:
        listed = digests.listed(out["path"])
        contents = {entry["md5"]: place / entry["relpath"] for entry in listed}
        manifest = object_path(cache, out["md5"])
        if manifest in removed:
            _write_object(manifest, lambda fresh: fresh.write_bytes(folder_bytes(listed)))
            yield manifest
    for digest, file in contents.items():
        if (target := object_path(cache, digest)) in removed:
            _write_object(target, partial(shutil.copyfile, file))
            yield target


def _write_object(target: Path, write: Callable[[Path], object]) -> None:
    with atomic_path(target) as temporary:
        write(temporary)
        temporary.chmod(READ_ONLY)
    sync(target)
