"""`posttrain run`."""

from __future__ import annotations

import pytest

from posttrain.errors import ParamsError
from posttrain.pipeline import by_name
from posttrain.pipeline.commands import run as module
from posttrain.pipeline.commands.line import parse


def test_a_stage_gets_its_words_and_prints_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(by_name, "run_stage", lambda stage, words: started.append((stage, words)))
    assert module.run(parse(["run", "sft", "main"])) == ""
    assert started == [("sft", ["main"])]
    with pytest.raises(ParamsError, match="no stage 'stf'"):
        module.run(parse(["run", "stf", "main"]))
    with pytest.raises(ParamsError, match="`posttrain run` does not print JSON"):
        module.run(parse(["run", "sft", "main", "--json"]))
