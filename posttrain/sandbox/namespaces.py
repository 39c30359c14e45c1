"""Namespaces: a file system with only Python in it, no network, and a scratch folder of limited size."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Final

from posttrain.sandbox.linux import (
    FOREIGN,
    SYS_PIVOT_ROOT,
    libc,
    machine,
    python_folders,
    syscall,
    system_files,
)

MOUNTS, UTS, IPC, USER, NETWORK = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x40000000
RDONLY, NOSUID, NODEV, NOEXEC, REMOUNT, BIND, REC, PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
DETACH: Final = 2
SCRATCH: Final = "/tmp/scratch"
"""A folder inside a folder, because Landlock does not see the mount point of another file system itself."""


def enter(base: Path) -> None:
    """Move this process into new namespaces. `base`: an empty folder that becomes its read-only root."""
    user, group = os.getuid(), os.getgid()
    libc("unshare", USER | MOUNTS | NETWORK | IPC | UTS)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    _mount("none", "/", flags=REC | PRIVATE)
    _mount("tmpfs", str(base), "tmpfs", NOSUID | NODEV, "size=1m,mode=755")
    for path in [*system_files(), *python_folders()]:
        _show(Path(path), base)
    for folder in (Path(parent, name) for parent in python_folders() for name in FOREIGN):
        if folder.is_dir():
            _mount("tmpfs", f"{base}{folder}", "tmpfs", RDONLY | NOSUID | NODEV, "size=4k")
    Path(f"{base}{SCRATCH}").mkdir(parents=True)
    os.chdir(base)
    syscall(SYS_PIVOT_ROOT[machine()], ctypes.c_char_p(b"."), ctypes.c_char_p(b"."))
    libc("umount2", ctypes.c_char_p(b"."), DETACH)
    os.chdir("/")
    _mount("none", "/", flags=REMOUNT | BIND | RDONLY | NOSUID | NODEV)


def mount_scratch(size: int, files: int) -> None:
    """Mount a private scratch folder in memory with at most this many bytes and files."""
    libc("unshare", MOUNTS)
    _mount("tmpfs", SCRATCH, "tmpfs", NOSUID | NODEV | NOEXEC, f"size={size},nr_inodes={files},mode=700")
    os.chdir(SCRATCH)


def _show(path: Path, base: Path) -> None:
    """Mount a file or folder of the old root in the new one, read-only."""
    target = Path(f"{base}{path}")
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():
        target.symlink_to(path.readlink())
        _show(path.resolve(), base)
        return
    if path.is_dir():
        target.mkdir()
    else:
        target.touch()
    _mount(str(path), str(target), flags=BIND | REC)
    device = 0 if path.is_char_device() else NODEV
    _mount("none", str(target), flags=REMOUNT | BIND | RDONLY | NOSUID | device | _locked(path))


def _locked(path: Path) -> int:
    """Return the mount flags that a user namespace must keep."""
    flags = {os.ST_NODEV: NODEV, os.ST_NOEXEC: NOEXEC, os.ST_NOATIME: 1024, os.ST_NODIRATIME: 2048}
    flags[os.ST_RELATIME] = 1 << 21
    current = os.statvfs(path).f_flag
    return sum(flag for name, flag in flags.items() if current & name)


def _mount(source: str, target: str, kind: str | None = None, flags: int = 0, data: str = "") -> None:
    words = [text.encode() if text else None for text in (source, target, kind)]
    libc("mount", *map(ctypes.c_char_p, words), ctypes.c_ulong(flags), ctypes.c_char_p(data.encode()))
