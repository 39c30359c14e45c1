"""The arguments of `posttrain serve`. What it answers is in `tests/pipeline/serve`."""

from __future__ import annotations

import pytest

from posttrain.pipeline.commands import serve as module
from posttrain.pipeline.commands.line import parse
from posttrain.pipeline.serve import server


def test_a_model_is_served_at_a_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "serve", lambda *given: f"{given}")
    assert module.run(parse(["serve", "sft/main", "--port", "7", "--threads", "2"])) == "('sft/main', 7, 2)"
