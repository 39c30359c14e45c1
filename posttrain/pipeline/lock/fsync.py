"""Write files to the disk (fsync), so that a power cut does not lose them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from posttrain.files import atomic_path, fsync, sync
from posttrain.pipeline.lock.digests import LOCK, SETTLED_NS, boot, listed, recorded

SYNCED: Final = Path(".dvc/tmp/synced")
"""The file with the boot id. Its modification time is the start of the last sync."""
DIR: Final = re.compile(rb"^[ \t]*[\"']?dir\b", re.MULTILINE)
"""A setting `dir` in a configuration of DVC's, of the cache or of another section."""


def sync_cache(root: Path = Path()) -> None:
    """Write dvc.lock and its newly cached outputs to the disk, because DVC does not."""
    cache, stamp = cache_folder(root), root / SYNCED
    if not (root / ".dvc").is_dir():
        return
    with atomic_path(stamp, shared=True) as fresh:  # its time is from the clock of the objects' times
        fresh.write_text(boot(), encoding="utf-8")
        since = _synced(stamp, fresh)
        objects = {
            file
            for entry in recorded(root).values()
            for out in entry.get("outs", [])
            for file in cached(cache, out)
            if file.exists() and file.stat().st_ctime_ns >= since
        }
        for file in [*objects, *{file.parent for file in objects}, cache]:
            if file.exists():
                fsync(file)
        sync(root / LOCK)


def _synced(stamp: Path, fresh: Path) -> int:
    """Return the start of this boot's last sync; 0 before the first, or if the clock was set back since."""
    if not stamp.is_file() or stamp.read_text(encoding="utf-8") != boot():
        return 0
    began, now = (file.stat().st_mtime_ns for file in (stamp, fresh))
    return began - SETTLED_NS if began <= now else 0


def cache_folder(root: Path) -> Path:
    """Return the folder of the objects in DVC's cache."""
    folder = None
    if _names_a_cache(root):  # importing DVC's reader takes longer than all else that `posttrain status` does
        from dvc.config import Config

        with suppress(NotADirectoryError):  # without a home folder there is no user configuration
            folder = Config(str(root.absolute() / ".dvc")).get("cache", {}).get("dir")
    return Path(folder or root / ".dvc/cache") / "files/md5"


def _names_a_cache(root: Path) -> bool:
    """True if a configuration file of DVC may say where its cache is."""
    from dvc.dirs import global_config_dir, system_config_dir

    folders = (Path(global_config_dir()), Path(system_config_dir()))
    files = (root / ".dvc/config", root / ".dvc/config.local", *(folder / "config" for folder in folders))
    for file in files:
        with suppress(FileNotFoundError, NotADirectoryError):
            if DIR.search(file.read_bytes()):
                return True
    return False


def object_path(cache: Path, digest: str) -> Path:
    """Return the path of the object with this digest in the cache."""
    return cache / digest[:2] / digest[2:]


def cached(cache: Path, out: Mapping[str, Any]) -> Iterator[Path]:
    """Yield the paths of an output's objects in the cache: its object, and for a folder the objects of its files."""
    if digest := out.get("md5"):
        yield object_path(cache, digest)
        if digest.endswith(".dir"):
            yield from (object_path(cache, entry["md5"]) for entry in listed(object_path(cache, digest)))
