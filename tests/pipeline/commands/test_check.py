"""`posttrain check`."""

from __future__ import annotations

from pathlib import Path

import pytest

from posttrain.errors import ParamsError
from posttrain.pipeline.commands import check as module
from posttrain.pipeline.commands.line import parse


def test_what_is_right_is_said_and_a_mistake_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("custom").mkdir()
    Path("params.yaml").write_text("data: {tasks: {toy: {task: two_step}}}\n")
    assert module.run(parse(["check"])) == "params.yaml: 1 run is right"
    Path("params.yaml").write_text("data: {tasks: {toy: {task: no_such}}}\n")
    with pytest.raises(ParamsError, match="no_such"):
        module.run(parse(["check"]))
