"""Digests in DVC's form: for a file, the md5 of its bytes; for a folder, the md5 of its list of files."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Final

from posttrain.files import file_digest, write_json
from posttrain.pipeline.lock.lock_shape import lock_stages

LOCK: Final = "dvc.lock"
DIGESTS_FILE: Final = Path(".dvc/tmp/digests.json")
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
SETTLED_NS: Final = 2_000_000_000
"""A younger file may be rewritten without a change of its times, because their clock is coarse."""
TICK_NS: Final = 100_000_000
"""The same for times that are finer than a millisecond."""

WAIT_SAID_S: Final = 1.0
"""Seconds that a command waits for DVC's lock before it says so."""
WRITES: Final = 50
"""How many ticks to wait until dvc.lock is written."""

Mark = tuple[int, int, int, int]
"""Inode, size, and the times of the last write and of the last change."""


class Digests:
    """The digests of a workspace's files, cached between processes until a file's mark or the boot changes."""

    def __init__(self, root: Path = Path()) -> None:
        self._root = root

    def marks(self, path: str) -> dict[str, Mark]:
        """Return the marks of a file, or of every file in a folder by relative path; empty if missing."""
        place = self._root / path
        if not place.is_dir():
            return {"": mark(place)} if place.is_file() else {}
        return {name: mark(place / name) for name in self._files(place)}

    def of(self, path: str) -> str | None:
        """Return the digest of a file or folder; None if it is missing."""
        place, marks = self._root / path, self.marks(path)
        if "" in marks:
            return self._file(path, marks[""])
        if not place.is_dir():
            return None
        return hashlib.md5(folder_bytes(self.listed(path)), usedforsecurity=False).hexdigest() + ".dir"

    def listed(self, path: str) -> list[dict[str, str]]:
        """Return the files of a folder in DVC's list format."""
        marks = self.marks(path)
        return [{"md5": self._file(f"{path}/{name}", marks[name]), "relpath": name} for name in sorted(marks)]

    def adopt(self, path: str, digest: str, manifest: Path, until: int) -> None:
        """Reuse the digests that DVC has recorded for an output, except for files that changed after `until`."""
        parts = {"": digest}
        if digest.endswith(".dir"):  # DVC's list of the folder's files
            whole = manifest.is_file() and f"{file_digest(manifest)}.dir" == digest
            parts = {entry["relpath"]: entry["md5"] for entry in listed(manifest)} if whole else {}
        for name, present in self.marks(path).items():
            if name in parts and max(present[2:]) <= until:
                self._known[f"{path}/{name}" if name else path] = [*present, parts[name]]

    def keep(self) -> None:
        """Store the digests for other processes, if this is a DVC workspace."""
        if (self._root / DIGESTS_FILE).parent.is_dir():
            now = time.time_ns()
            old = {path: known for path, known in self._known.items() if _settled(max(known[2:4]), now)}
            write_json(self._root / DIGESTS_FILE, {"boot": boot(), "files": old, "sum": _sum(old)}, shared=True)

    @cached_property
    def _known(self) -> dict[str, list[Any]]:
        try:
            stored = json.loads((self._root / DIGESTS_FILE).read_bytes())
            # What a machine that lost its power had read from memory need not be what its disk has.
            whole = stored["boot"] == boot() and stored["sum"] == _sum(stored["files"])
            return dict(stored["files"]) if whole else {}
        except (OSError, ValueError, KeyError, TypeError):  # only a memory: whatever is wrong, the files are read again
            return {}

    def _file(self, path: str, present: Mark) -> str:
        known = self._known.get(path)
        if known is None or tuple(known[:4]) != present:
            known = self._known[path] = [*present, file_digest(self._root / path)]
        return str(known[4])

    def _files(self, folder: Path) -> Iterator[str]:
        """Yield the files of a folder, without those that .dvcignore excludes."""
        start = os.path.abspath(folder)
        for here, folders, files in os.walk(start):
            folders[:] = [name for name in folders if not any(ignored(here, name, True) for ignored in self._ignored)]
            for name in files:
                if not any(ignored(here, name, False) for ignored in self._ignored):
                    yield Path(here, name).relative_to(start).as_posix()

    @cached_property
    def _ignored(self) -> list[Callable[[str, str, bool], bool]]:
        """DVC's ignore patterns. DVC rejects a .dvcignore in a tracked folder, so only the root has one."""
        from dvc.fs import localfs
        from dvc.ignore import DvcIgnore, DvcIgnorePatterns

        root = os.path.abspath(self._root)
        patterns = [DvcIgnorePatterns([".hg/", ".git/", ".git", ".dvc/"], root, os.sep)]
        file = Path(root, DvcIgnore.DVCIGNORE_FILE)
        if file.is_file():
            patterns.append(DvcIgnorePatterns.from_file(str(file), localfs, file.name))
        return [pattern.matches for pattern in patterns]


def _settled(changed: int, now: int) -> bool:
    """Tell whether rewriting a file now would change its time. Clocks may tick in seconds or milliseconds."""
    return now - changed > (TICK_NS if changed % 1_000_000 else SETTLED_NS)


def _sum(files: dict[str, list[Any]]) -> str:
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


def mark(file: Path) -> Mark:
    """Return a value that changes when a file is written or replaced."""
    status = file.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def folder_bytes(listed: list[dict[str, str]]) -> bytes:
    """Return the bytes that DVC's cache stores for a folder."""
    return json.dumps(listed, sort_keys=True).encode()


def listed(file: Path) -> list[dict[str, str]]:
    """Return the files listed in the cache's object of a folder; empty if it is missing or damaged."""
    try:
        entries = json.loads(file.read_bytes())
        return [{"md5": str(entry["md5"]), "relpath": str(entry["relpath"])} for entry in entries]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def boot() -> str:
    """Return a value that identifies this boot of the machine."""
    if BOOT_ID.is_file():
        return BOOT_ID.read_text(encoding="ascii").strip()
    import psutil

    return str(int(psutil.boot_time()))


def recorded(folder: Path = Path()) -> dict[str, dict[str, Any]]:
    """Return the stages in a folder's dvc.lock, read while no DVC process writes it."""
    with dvc_lock(folder):
        return read_lock(folder)


def read_lock(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the stages; the caller already holds the lock."""
    file = folder / LOCK
    return _stages(file, mark(file)) if file.is_file() else {}


def read_settled(folder: Path = Path()) -> dict[str, dict[str, Any]]:
    """Return the stages without the lock. DVC may be writing the file in place, so wait until it is stable."""
    file = folder / LOCK
    for _ in range(WRITES):
        if not file.is_file() or time.time_ns() - file.stat().st_mtime_ns > TICK_NS:
            break
        time.sleep(TICK_NS / 1e9)
    return read_lock(folder)


@contextmanager
def dvc_lock(root: Path) -> Iterator[None]:
    """Prevent all DVC processes from writing DVC's files in this project, because DVC writes them in place."""
    from dvc.lock import make_lock

    folder = root / DIGESTS_FILE.parent
    if not folder.is_dir():
        yield
        return
    lock = make_lock(str(folder / "lock"), tmp_dir=str(folder), wait=True)
    told = threading.Timer(WAIT_SAID_S, _say_waiting, [folder / "lock"])
    told.daemon = True
    told.start()
    try:
        lock.lock()
    finally:
        told.cancel()
    try:
        yield
    finally:
        lock.unlock()


def _say_waiting(lock: Path) -> None:
    """Print which process has the lock. DVC writes its process id into the file."""
    holder = lock.read_text(encoding="utf-8", errors="replace").strip() if lock.is_file() else ""
    by = f" that process {holder} holds" if holder.isdecimal() else ""
    print(f"waiting for DVC's lock{by}; Ctrl-C ends the wait ({lock})", file=sys.stderr, flush=True)


@lru_cache(maxsize=1)
def _stages(file: Path, _: Mark) -> dict[str, dict[str, Any]]:
    return lock_stages(file.read_bytes(), str(file))
