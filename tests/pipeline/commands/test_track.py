"""The arguments of `posttrain track`. What trackers get is in `tests/plugins/trackers`."""

from __future__ import annotations

import pytest

from posttrain.pipeline.commands import track as module
from posttrain.pipeline.commands.line import parse
from posttrain.pipeline.track import push
from posttrain.pipeline.track.push import Plan


def test_runs_are_pushed_to_the_named_trackers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(push, "missing", lambda trackers: [])
    monkeypatch.setattr(push, "push", lambda plan: f"{plan}")
    words = ["track", "online/grpo", "--to", "mlflow, wandb", "--project", "p", "--completions", "-3"]
    given = parse(words)
    assert module.run(given) == f"{Plan('p', ['mlflow', 'wandb'], ['online/grpo'], given.follow, given.every, 0)}"
