"""Connections that are idle, and requests beyond the most."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from posttrain.pipeline.serve import connections as module
from posttrain.pipeline.serve.connections import Busy, Connection


@pytest.mark.parametrize(
    ("cycle", "idle"),
    [(None, True), (SimpleNamespace(response_complete=True), True), (SimpleNamespace(response_complete=False), False)],
)
def test_a_connection_is_idle_between_requests(cycle: Any, idle: bool) -> None:
    connection = Connection.__new__(Connection)
    connection.cycle = cycle
    assert connection.is_idle is idle


def test_a_request_too_many_is_answered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CONNECTIONS", 1)
    sent: list[dict[str, Any]] = []
    let, kinds = asyncio.Event(), []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        del receive, send
        kinds.append(scope["type"])
        await let.wait()

    async def send(message: Any) -> None:
        sent.append(message)

    async def main() -> None:
        busy = Busy(app)
        first = asyncio.create_task(busy({"type": "http"}, None, send))
        await asyncio.sleep(0)
        await busy({"type": "http"}, None, send)
        let.set()
        await first
        await busy({"type": "http"}, None, send)
        await busy({"type": "lifespan"}, None, send)

    asyncio.run(main())
    assert sent[0]["status"] == 503 and "1 requests are in progress" in json.loads(sent[1]["body"])["error"]["message"]
    assert kinds == ["http", "http", "lifespan"]
