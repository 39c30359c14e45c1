"""Landlock: what a process may read and write under its rules."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from posttrain.sandbox import landlock, linux
from posttrain.sandbox.landlock import FIRST, landlock_version, make_rules, restrict

needed = pytest.mark.skipif(landlock_version() < FIRST, reason="this kernel has no Landlock")


def test_the_version_is_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = Path("/sys/kernel/security/lsm")
    active = listed.is_file() and "landlock" in listed.read_text(encoding="ascii")
    created = linux._LIBC.syscall(landlock.CREATE, None, 0, 1)
    assert landlock_version() == max(created, 0)
    assert landlock_version() > 0 or not active

    def missing(number: int, *words: object) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(landlock, "syscall", missing)
    assert landlock_version() == 0


def in_a_fork(step: Callable[[], None]) -> str:
    """The error of a step in a process of its own; empty if there is none."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            step()
        except OSError as error:
            os.write(write, type(error).__name__.encode())
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as said:
        return said.read()


@needed
def test_only_what_the_rules_name_is_read_and_written(tmp_path: Path) -> None:
    shown, hidden, scratch = (tmp_path / name for name in ("shown", "hidden", "scratch"))
    for folder in (shown, hidden, scratch):
        folder.mkdir()
        (folder / "file").write_text("text")
    rules = make_rules([str(shown), str(hidden / "file")], [], [str(scratch)])
    assert "landlock" in str(Path(f"/proc/self/fd/{rules}").readlink())

    def under(step: Callable[[], object]) -> str:
        def both() -> None:
            linux.drop_privileges()
            restrict(rules)
            step()

        return in_a_fork(both)

    assert under((shown / "file").read_bytes) == under((hidden / "file").read_bytes) == ""
    assert under(lambda: list(hidden.iterdir())) == "PermissionError"
    assert under(lambda: (scratch / "new").write_bytes(b"")) == ""
    assert under(lambda: (shown / "new").write_bytes(b"")) == "PermissionError"
    os.close(rules)
