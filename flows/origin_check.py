"""Reject requests to Prefect's server that a foreign web page sends through a local user's browser."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

NAMES = ("127.0.0.1", "localhost")
"""Host names of this machine. Any other name was redirected here by DNS (rebinding)."""
Message = MutableMapping[str, Any]
App = Callable[[Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]]


class OriginCheck:
    """ASGI middleware that checks the Host and Origin headers of every request and websocket."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(
        self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        reason = refusal_reason(scope["headers"]) if scope["type"] in ("http", "websocket") else ""
        if not reason:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": reason})
        else:
            await send({"type": "http.response.start", "status": 403, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": reason.encode()})


def refusal_reason(headers: list[tuple[bytes, bytes]]) -> str:
    """Return the reason to reject a request with these headers; empty if it is allowed."""
    hosts, origins = ([value.decode("latin-1").lower() for name, value in headers if name == key] for key in _KEYS)
    if len(hosts) != 1 or hosts[0].partition(":")[0] not in NAMES:
        return f"unknown host; use {' or '.join(NAMES)}"
    # The port is that of the Host header: through a tunnel it may differ from the server's.
    _, colon, port = hosts[0].partition(":")
    allowed = {f"http://{name}{colon}{port}" for name in NAMES}
    return "" if allowed.issuperset(origins) else "requests from other sites are rejected"


_KEYS = (b"host", b"origin")
