"""The arguments of `posttrain watch`. What it shows is in `tests/pipeline/report/test_live.py`."""

from __future__ import annotations

import pytest

from posttrain.pipeline.commands import watch as module
from posttrain.pipeline.commands.line import parse
from posttrain.pipeline.report import live


def test_the_page_is_served_at_a_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "watch", lambda port: f"watched {port}")
    assert module.run(parse(["watch", "--port", "7"])) == "watched 7"
