"""Write files completely or not at all; sizes and free memory."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import shutil
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def is_outside(path: str | Path, root: str | Path = ".") -> bool:
    """Tell whether a path, with links resolved, is outside the workspace or another folder."""
    return not Path(path).resolve().is_relative_to(Path(root).resolve())


def write_json(path: Path, data: object, *, shared: bool = False) -> None:
    """Write plain data as a JSON file, completely or not at all."""
    write_text(path, json.dumps(data, indent=2) + "\n", shared=shared)


@contextlib.contextmanager
def atomic_path(path: Path, *, shared: bool = False) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` at the end. After an error, `path` is unchanged.

    `shared`: several processes or threads may write it at the same time.

    Example: `with atomic_path(file) as temporary: temporary.write_bytes(data)`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # One fixed name, so that the next attempt overwrites what a killed process left.
    suffix = f"-{os.getpid()}-{threading.get_ident()}" if shared else ""
    temporary = path.with_name(f".{path.name}.tmp{suffix}")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        yield temporary
        if temporary.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        os.replace(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        with contextlib.suppress(OSError):
            temporary.unlink()


def remove_oldest(new: Path, most: int) -> None:
    """Remove a cache's least recently used files beyond `most` bytes, with their digests; `new` stays."""
    used: list[tuple[float, int, Path]] = []
    for file in new.parent.glob(f"*{new.suffix}"):
        with contextlib.suppress(FileNotFoundError):  # another process may remove it at the same time
            used.append((file.stat().st_mtime, file.stat().st_size, file))
    for _, size, file in sorted(used, reverse=True):
        most -= size
        if most < 0 and file != new:
            file.unlink(missing_ok=True)
            file.with_suffix(".md5").unlink(missing_ok=True)


def fsync(path: Path) -> None:
    """Wait until a file, or a folder's list of names, is written to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync(path: Path) -> None:
    """Write a file, or a folder with all its files, to the disk, with its name."""
    if path.is_dir():
        for here, _, files in os.walk(path):
            for name in files:
                fsync(Path(here, name))
            fsync(Path(here))
    elif path.exists():
        fsync(path)
    if path.exists():
        fsync(path.absolute().parent)


def file_digest(file: Path) -> str:
    """Return the md5 of a file's bytes."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def write_text(path: Path, text: str, *, shared: bool = False) -> None:
    """Write a text file, completely or not at all."""
    with atomic_path(path, shared=shared) as temporary:
        temporary.write_text(text, encoding="utf-8")


def read_finite_json(path: Path) -> Any:
    """Read a JSON file. Reject numbers that are not finite, as the JSON standard does."""
    return json.loads(path.read_text(encoding="utf-8"), parse_constant=_finite, parse_float=_finite)


def _finite(text: str) -> float:
    if not math.isfinite(float(text)):
        raise ValueError(f"{text} is not finite")
    return float(text)


def rounded(values: Mapping[str, float], digits: int = 6) -> dict[str, float]:
    """Return the finite numbers, rounded to significant digits.

    Print a line about other numbers, which JSON cannot store.
    """
    if odd := [name for name, value in values.items() if not math.isfinite(value)]:
        print(f"not finite, so omitted: {', '.join(odd)}", file=sys.stderr)
    return {name: float(f"{value:.{digits}g}") for name, value in values.items() if name not in odd}


def free_memory() -> float:
    """Return the free memory in bytes, within the container's limit."""
    import resource

    free = _available()
    with contextlib.suppress(OSError, ValueError, KeyError):  # "max" where there is no limit
        group = Path("/sys/fs/cgroup")
        limit, used = (int((group / f"memory.{name}").read_text()) for name in ("max", "current"))
        parts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        free = min(free, float(limit - used + int(parts["inactive_file"])))  # of it, cache that can be freed
    most, _ = resource.getrlimit(resource.RLIMIT_AS)  # ulimit -v
    if most != resource.RLIM_INFINITY:
        free = max(0.0, min(free, float(most - _address_space())))
    return free


def _available() -> float:
    """Return the bytes that the system could give a process; all memory if the system does not say."""
    page = os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return 1024.0 * int(next(line.split()[1] for line in lines if line.startswith("MemAvailable:")))
    return float(os.sysconf("SC_PHYS_PAGES") * page)


def _address_space() -> int:
    """Return the size of this process's address space in bytes; 0 if the system does not say."""
    with contextlib.suppress(OSError, ValueError):
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def format_size(size: float) -> str:
    """Return a number of bytes as text, e.g. 1.5 MB."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


def format_age(seconds: float) -> str:
    """Return a duration as text, in the largest unit with a value of at least 2."""
    for unit, length in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} seconds"


def user_cache() -> Path:
    """Return the user's cache folder outside any project: $XDG_CACHE_HOME/posttrain, or ~/.cache/posttrain."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "posttrain"
