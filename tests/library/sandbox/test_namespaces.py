"""Mount flags that a user namespace must keep."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from posttrain.sandbox import namespaces
from posttrain.sandbox.namespaces import NODEV, NOEXEC, _locked


@pytest.mark.parametrize(
    ("found", "kept"),
    [
        (0, 0),
        (os.ST_NODEV, NODEV),
        (os.ST_NODEV | os.ST_NOEXEC | os.ST_RDONLY, NODEV | NOEXEC),
        (os.ST_NOATIME | os.ST_NODIRATIME, 1024 | 2048),
        (os.ST_RELATIME, 1 << 21),
    ],
)
def test_flags_of_a_mount(monkeypatch: pytest.MonkeyPatch, found: int, kept: int) -> None:
    monkeypatch.setattr(namespaces.os, "statvfs", lambda path: SimpleNamespace(f_flag=found))
    assert _locked(Path("/")) == kept


def test_flags_of_a_real_mount() -> None:
    assert bool(_locked(Path("/")) & NODEV) == bool(os.statvfs("/").f_flag & os.ST_NODEV)
