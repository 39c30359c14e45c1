"""A command of the user's, its output and its exit status."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from posttrain.isolation.command import run_command


@pytest.mark.parametrize(
    ("code", "status"), [("print('a')", 0), ("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", 137)]
)
def test_exit_status(code: str, status: int, tmp_path: Path) -> None:
    shown: list[bytes] = []
    assert run_command([sys.executable, "-c", code], dict(os.environ), tmp_path, shown.append) == status
    assert b"".join(shown) == (b"a\n" if status == 0 else b"")


def test_a_command_that_is_not_there(tmp_path: Path) -> None:
    shown: list[bytes] = []
    assert run_command(["/nothing/here"], dict(os.environ), tmp_path, shown.append) == 127
    assert b"No such file" in b"".join(shown)
