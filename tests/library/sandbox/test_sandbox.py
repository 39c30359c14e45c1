"""`python -m posttrain.sandbox` shows the mechanisms of this machine."""

from __future__ import annotations

import re

import pytest

from posttrain.sandbox import __main__ as command
from posttrain.sandbox.parent import ISOLATED, SandboxError


def test_each_mechanism_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:-1]] == list(ISOLATED)
    assert re.match(r"Programs are isolated; one took \d+ ms\.", lines[-1])


def test_a_machine_without_isolation_ends_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none() -> None:
        raise SandboxError("no isolation", "Use Linux")

    monkeypatch.setattr(command, "Sandbox", none)
    assert command.main() == 1
    assert capsys.readouterr().err == "error: no isolation. Use Linux\n"
