"""The arguments of `posttrain init`. What it writes is in `test_project.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from posttrain.errors import ParamsError
from posttrain.pipeline.commands import init as module
from posttrain.pipeline.commands.init import project
from posttrain.pipeline.commands.line import parse


def test_a_project_is_written_or_upgraded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(project, "init", lambda *given: f"init {given}")
    monkeypatch.setattr(project, "upgrade", lambda *given: f"upgrade {given}")
    assert module.run(parse(["init", "mine", "--recipe", "rlvr"])) == f"init {(Path('mine'), 'rlvr')}"
    assert module.run(parse(["init", "--upgrade"])) == "upgrade ('show',)"
    assert module.run(parse(["init", "--upgrade", "--yes"])) == "upgrade ('write',)"
    with pytest.raises(ParamsError, match="no folder was given"):
        module.run(parse(["init"]))
