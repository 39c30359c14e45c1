"""Landlock: restrict which files this process and its children may read and write (kernel.org/doc, landlock)."""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterable
from typing import Final

from posttrain.sandbox.linux import syscall

CREATE, ADD, RESTRICT = 444, 445, 446
"""System call numbers, which are the same on every architecture."""
FIRST: Final = 3
"""The first version that also prevents truncating files (Linux 6.2)."""
READ_FILE, READ_DIR = 1 << 2, 1 << 3
EXECUTE, MAKE_CHAR, MAKE_SOCK, MAKE_FIFO, MAKE_BLOCK = 1, 1 << 6, 1 << 9, 1 << 10, 1 << 11
ALL_FILES: Final = {3: (1 << 15) - 1, 5: (1 << 16) - 1}
"""Version -> all access rights on files that it supports."""
ALL_NETWORK: Final = 3
ALL_SCOPES: Final = 3
"""Abstract sockets, and signals to processes outside."""
WRITE: Final = ALL_FILES[3] & ~(EXECUTE | MAKE_CHAR | MAKE_SOCK | MAKE_FIFO | MAKE_BLOCK)
ON_FILES: Final = EXECUTE | READ_FILE | 1 << 1 | 1 << 14
"""The rights that apply to files: read, write, truncate."""


def landlock_version() -> int:
    """Return the kernel's Landlock version; 0: none."""
    try:
        return syscall(CREATE, None, 0, 1)
    except OSError:
        return 0


def make_rules(read: Iterable[str], listed: Iterable[str], written: Iterable[str]) -> int:
    """Return a file descriptor of rules: only these paths with their contents may be read, listed or written."""
    version = landlock_version()
    files = ALL_FILES[5 if version >= 5 else 3]
    fields = [files, *([ALL_NETWORK] if version >= 4 else []), *([ALL_SCOPES] if version >= 6 else [])]
    handled = (ctypes.c_uint64 * len(fields))(*fields)
    rules = syscall(CREATE, ctypes.byref(handled), ctypes.sizeof(handled), 0)
    for paths, rights in ((read, READ_FILE | READ_DIR), (listed, READ_DIR), (written, WRITE)):
        for path in paths:
            _allow(rules, path, rights)
    return rules


def restrict(rules: int) -> None:
    """Apply the rules to this process permanently."""
    syscall(RESTRICT, rules, 0)


def _allow(rules: int, path: str, rights: int) -> None:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= ON_FILES
        beneath = rights.to_bytes(8, "little") + descriptor.to_bytes(4, "little")  # the struct is packed
        syscall(ADD, rules, 1, ctypes.c_char_p(beneath), 0)
    finally:
        os.close(descriptor)
