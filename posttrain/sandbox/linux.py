"""Linux kernel calls that Python's standard library lacks, and the files that a program may read."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

PR_SET_PDEATHSIG: Final = 1
PR_SET_DUMPABLE: Final = 4
PR_SET_SECCOMP: Final = 22
PR_SET_NO_NEW_PRIVS: Final = 38
SYS_CAPSET: Final = {"x86_64": 126, "aarch64": 91}
SYS_PIVOT_ROOT: Final = {"x86_64": 155, "aarch64": 41}
CAPABILITY_VERSION: Final = 0x20080522
SYSTEM: Final = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache", "/usr/share/zoneinfo")
DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/urandom")
FOREIGN: Final = ("site-packages", "dist-packages")
"""Folders of other packages in Python's library, which may contain the tests of a benchmark."""


_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def machine() -> str:
    """Return the processor architecture as named in the tables of system calls."""
    return platform.machine()


def libc(name: str, *args: Any) -> int:
    """Call a function of the C library. A failure is an OSError with its name."""
    result: int = getattr(_LIBC, name)(*args)
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


def syscall(number: int, *args: Any) -> int:
    """Call the kernel by number. Integers are passed as 64 bits."""
    return libc(
        "syscall", ctypes.c_long(number), *(ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in args)
    )


def prctl(option: int, *args: int) -> None:
    """Set a property of this process."""
    libc("prctl", ctypes.c_int(option), *(ctypes.c_ulong(arg) for arg in (*args, 0, 0, 0, 0)[:4]))


def drop_privileges() -> None:
    """Give up every capability, and the right to gain any."""
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    syscall(SYS_CAPSET[machine()], ctypes.byref(header), ctypes.byref((ctypes.c_uint32 * 6)()))


def python_folders() -> list[str]:
    """Return the folders of Python's standard library."""
    paths = sysconfig.get_paths()
    return sorted({paths["stdlib"], paths["platstdlib"]})


def system_files() -> list[str]:
    """Return the shared libraries and devices that Python needs."""
    shared = [str(library) for library in sorted(Path(sys.base_prefix, "lib").glob("lib*.so*"))]
    return existing([*SYSTEM, *shared, *DEVICES])


def readable() -> list[str]:
    """Return files and folders that a program may read: the standard library without other packages, system files."""
    return [*existing(entry for folder in python_folders() for entry in _entries(folder)), *system_files()]


def existing(paths: Iterable[str]) -> list[str]:
    """Return the paths that exist."""
    return [path for path in paths if Path(path).exists()]


def _entries(folder: str) -> list[str]:
    return [str(path) for path in sorted(Path(folder).iterdir()) if path.name not in FOREIGN]
