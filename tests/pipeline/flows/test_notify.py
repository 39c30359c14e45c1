"""What is posted of a failed flow."""

from __future__ import annotations

import socket

import pytest

from flows.notify import message, send


def test_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://here/api")
    found = message("report", "a-run", "id1", "Failed", "\x1b[31mno <b>\x1b[0m ```x```")
    assert found["text"] == (f"report 'a-run' on {socket.gethostname()}: Failed\n```\nno &lt;b&gt; '''x'''\n```")
    assert found["message"] == "no <b> ```x```" and found["url"] == "http://here/runs/flow-run/id1"
    assert message("f", "r", "i", "s", "word " * 2000)["message"].endswith("word ...")


def test_an_address_that_does_not_answer() -> None:
    assert send("not an address", {"text": "a"}) is False
