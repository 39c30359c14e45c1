"""Calls of the kernel, and the files that a program may read."""

from __future__ import annotations

import os
import platform
import sysconfig
from pathlib import Path

import pytest

from posttrain.sandbox.linux import (
    DEVICES,
    _entries,
    existing,
    libc,
    machine,
    prctl,
    python_folders,
    readable,
    syscall,
    system_files,
)

GET_NAME, SET_NAME = 16, 15


def test_the_machine() -> None:
    assert machine() == platform.machine() == os.uname().machine


def test_calls_of_the_c_library() -> None:
    assert libc("getpid") == os.getpid()
    with pytest.raises(OSError, match="rmdir: No such file or directory"):
        libc("rmdir", b"/not/there")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the number is that of x86-64")
def test_calls_by_number() -> None:
    assert syscall(39) == os.getpid()
    with pytest.raises(OSError, match="Bad file descriptor"):
        syscall(3, -1)


def test_a_property_that_is_unknown_is_an_error() -> None:
    with pytest.raises(OSError, match="prctl: Invalid argument"):
        prctl(999)


def test_files_of_python() -> None:
    stdlib = sysconfig.get_path("stdlib")
    folders = python_folders()
    assert stdlib in folders and len(folders) == len(set(folders)) <= 2
    entries = _entries(stdlib)
    assert f"{stdlib}/os.py" in entries and f"{stdlib}/json" in entries
    assert len(entries) == len(set(entries))
    assert not any(name.endswith(("site-packages", "dist-packages")) for name in entries)


def test_files_of_the_system() -> None:
    files = system_files()
    assert set(DEVICES) < set(files) and all(Path(file).exists() for file in files)
    assert files[-1] == DEVICES[-1] and files.count(files[-1]) == 1


def test_readable_files_are_both() -> None:
    found = readable()
    assert f"{sysconfig.get_path('stdlib')}/os.py" in found and "/dev/null" in found
    assert found[-len(system_files()) :] == system_files() and found.count("/dev/null") == 1


def test_paths_that_are_not_there_are_left_out(tmp_path: Path) -> None:
    assert existing([str(tmp_path), str(tmp_path / "no"), "/"]) == [str(tmp_path), "/"]
