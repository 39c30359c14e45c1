"""The message that Prefect's server posts is JSON with the fields of a flow's own message."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from jinja2 import Environment

from flows.alerts import PAYLOAD, make
from flows.notify import VARIABLE, message
from posttrain.errors import PipelineError


def test_the_payload_is_json_whatever_a_stage_has_printed() -> None:
    text = 'it said "no" \\ {{ flow }}\n' + "x" * 5000
    state = SimpleNamespace(name="Failed", message=text)
    environment = Environment(autoescape=False)
    environment.filters["ui_url"] = lambda run: f"http://127.0.0.1:4200/runs/flow-run/{run.id}"
    given = {"flow": SimpleNamespace(name="pipeline"), "flow_run": SimpleNamespace(name="a 'b'", id="7", state=state)}
    body = json.loads(environment.from_string(PAYLOAD).render(given))
    assert body.keys() == message("pipeline", "a", "7", "Failed", "").keys()
    assert body["message"] == text[:3000] and body["url"].endswith("/7")
    state.message = None
    assert json.loads(environment.from_string(PAYLOAD).render(given))["message"] == ""


def test_without_a_webhook_nothing_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(PipelineError, match="no webhook is set"):
        make()
