"""What is posted of a failed flow."""

from __future__ import annotations

import socket

import pytest

from flows.notify import VARIABLE, message, send, webhook
from posttrain.errors import ParamsError


def test_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://here/api")
    found = message("report", "a-run", "id1", "Failed", "\x1b[31mno <b>\x1b[0m ```x```")
    assert found["text"] == (f"report 'a-run' on {socket.gethostname()}: Failed\n```\nno &lt;b&gt; '''x'''\n```")
    assert found["message"] == "no <b> ```x```" and found["url"] == "http://here/runs/flow-run/id1"
    assert message("f", "r", "i", "s", "word " * 2000)["message"].endswith("word ...")


def test_an_address_that_does_not_answer() -> None:
    assert send("not an address", {"text": "a"}) is False


def test_what_is_no_address_is_rejected_without_showing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert webhook() is None
    monkeypatch.setenv(VARIABLE, "https://hooks.example.com/a")
    assert webhook() == "https://hooks.example.com/a"
    for wrong in ("notaurl", "ftp://host/a", "https:///secret", "hooks.example.com/secret"):
        monkeypatch.setenv(VARIABLE, wrong)
        with pytest.raises(ParamsError, match="its value is not an address") as error:
            webhook()
        assert wrong not in str(error.value)
