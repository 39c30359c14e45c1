"""`posttrain chat`."""

from __future__ import annotations

import builtins
from pathlib import Path

import pytest

from posttrain.pipeline.commands import chat as module
from posttrain.pipeline.commands.line import parse
from tests.library.models.tiny import tiny_folder


def test_lines_are_answered_until_the_input_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = iter(["1+1=", "", "2+2="])

    def read(_: str) -> str:
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr(builtins, "input", read)
    folder = str(tiny_folder(tmp_path))
    assert module.run(parse(["chat", folder, "--temperature", "0"])) == "\nthe chat has ended"
    assert capsys.readouterr().out.startswith(f"chatting with {folder}; an empty line starts again, Ctrl-D ends\n")
