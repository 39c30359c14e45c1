"""Find objects of recorded outputs that DVC's cache lacks.

DVC would run their stages again although nothing changed.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from posttrain.files import atomic_path, sync
from posttrain.pipeline.lock.digests import Digests, dvc_lock, folder_bytes, read_lock
from posttrain.pipeline.lock.fsync import cache_folder, cached, object_path
from posttrain.pipeline.lock.graph import Pipeline

READ_ONLY = 0o444

Out = Mapping[str, Any]


def gaps(root: Path, pipeline: Pipeline, lock: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, Out]]:
    """Yield stage and output for each recorded output that is incomplete in DVC's cache."""
    cache = cache_folder(root)
    for name, stage in pipeline.stages.items():
        for out in lock.get(name, {}).get("outs", ()):
            is_stored = out["path"] in stage.outs and out["path"] not in stage.uncached
            if is_stored and not all(file.is_file() for file in cached(cache, out)):
                yield name, out


def gap_words(root: Path, pipeline: Pipeline, lock: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return stage -> a text that lists its outputs missing in DVC's cache."""
    gaps_of: dict[str, list[str]] = {}
    for name, out in gaps(root, pipeline, lock):
        gaps_of.setdefault(name, []).append(out["path"])
    return {name: f"DVC's cache lacks {', '.join(paths)}: run `posttrain repair`" for name, paths in gaps_of.items()}


def fill(root: Path) -> list[str]:
    """Copy intact outputs of the workspace into DVC's cache if they are missing there. Return a line about it."""
    digests, cache, copied = Digests(root), cache_folder(root), dict[str, int]()
    with dvc_lock(root):
        for name, out in gaps(root, Pipeline(root), read_lock(root)):
            if digests.of(out["path"]) == out["md5"]:
                copied[name] = copied.get(name, 0) + sum(1 for _ in restore(root, cache, out, digests))
    digests.keep()
    lacked = f"DVC's cache lacked {sum(copied.values())} objects of {', '.join(copied)}: copied from the workspace"
    return [lacked] if copied else []


def restore(root: Path, cache: Path, out: Out, digests: Digests) -> Iterator[Path]:
    """Copy an output that matches the record into the cache. Yield the objects that were missing."""
    place = root / out["path"]
    if place.is_file():
        contents = {out["md5"]: place}
    else:
        listed = digests.listed(out["path"])
        contents = {entry["md5"]: place / entry["relpath"] for entry in listed}
        manifest = object_path(cache, out["md5"])
        if not manifest.exists():
            with atomic_path(manifest) as temporary:
                temporary.write_bytes(folder_bytes(listed))
                temporary.chmod(READ_ONLY)
            sync(manifest)
            yield manifest
    for digest, file in contents.items():
        if not (target := object_path(cache, digest)).exists():
            with atomic_path(target) as temporary:
                shutil.copyfile(file, temporary)
                temporary.chmod(READ_ONLY)
            sync(target)
            yield target
