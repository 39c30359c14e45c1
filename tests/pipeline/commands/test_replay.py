"""The arguments of `posttrain replay`. What it does is in `test_rerun.py`."""

from __future__ import annotations

import pytest

from posttrain.pipeline import by_name
from posttrain.pipeline.commands import replay as module
from posttrain.pipeline.commands.line import parse
from posttrain.pipeline.commands.replay import rerun


def test_a_run_is_replayed_up_to_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_name, "prepare_process", lambda: None)
    monkeypatch.setattr(rerun, "replay", lambda *given: f"{given}")
    assert module.run(parse(["replay", "online/grpo"])) == "('online/grpo', None)"
    assert module.run(parse(["replay", "online/grpo", "--step", "40"])) == "('online/grpo', 40)"
