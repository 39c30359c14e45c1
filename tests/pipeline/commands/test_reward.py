"""The arguments of `posttrain reward`. What its actions do is in `test_trial.py`."""

from __future__ import annotations

import pytest

from posttrain.pipeline.commands import reward as module
from posttrain.pipeline.commands.line import parse
from posttrain.pipeline.commands.reward import agreement, trial
from posttrain.pipeline.tables.readers import CsvDialect


def test_each_action_gets_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "reward_test", lambda *given: f"{given}")
    monkeypatch.setattr(agreement, "judge_agreement", lambda *given: f"{given}")
    words = ["reward", "test", "format", "--table", "a.csv", "--separator", ";", "--options", "a=1", "-n", "3"]
    dialect = CsvDialect(";", None)
    assert module.run(parse(words)) == f"('format', 'a.csv', ['a=1'], None, 3, {dialect!r})"
    assert module.run(parse(["reward", "agreement", "a/feedback", "x.judge"])) == (
        "('a/feedback', 'x.judge', 'correct', 200, 0.5)"
    )
