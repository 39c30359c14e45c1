"""The arguments of `posttrain show inspect`."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path

import pytest

from posttrain.plugins.inspect import command, inspect_logs


def test_logs_are_written_into_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(inspect_logs, "write_logs", lambda *given: f"{given}")
    parser = ArgumentParser()
    command.add_arguments(parser)
    assert command.run(parser.parse_args([])) == f"{([], Path('inspect'))}"
    assert command.run(parser.parse_args(["grpo", "--to", "logs"])) == f"{(['grpo'], Path('logs'))}"
