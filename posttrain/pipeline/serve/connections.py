"""Connections of `posttrain serve`. Idle connections do not block others."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from posttrain.pipeline.serve.requests import failure

CONNECTIONS: Final = 256
"""The most connections, and requests in progress. A further connection closes the longest idle one."""
IDLE_S: Final = 15.0
"""Seconds that a connection may take to send a request's head."""


class Connection(H11Protocol):
    """A connection that is closed if it is idle too long, or if it is the longest idle of too many connections."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start waiting for a request. If there are too many connections, close the longest idle one."""
        super().connection_made(transport)
        self.idle_since = self.loop.time()
        self._watch = self.loop.call_later(IDLE_S, self._close_idle)
        if len(self.connections) > CONNECTIONS:
            idle = [one for one in self.connections if isinstance(one, Connection) and one.is_idle]
            min(idle, key=lambda one: one.idle_since).transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timer."""
        self._watch.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self.idle_since = self.loop.time()
        super().on_response_complete()

    @property
    def is_idle(self) -> bool:
        """Tell whether no request is in progress: nothing arrived yet, or only a part of a request's head."""
        cycle: Any = self.cycle
        return cycle is None or bool(cycle.response_complete)

    def _close_idle(self) -> None:
        waited = self.loop.time() - self.idle_since if self.is_idle else 0.0
        if waited >= IDLE_S:
            self.transport.close()
        else:
            self._watch = self.loop.call_later(IDLE_S - waited, self._close_idle)


class Busy:
    """ASGI middleware that answers 503 if too many requests are in progress."""

    def __init__(self, app: ASGIApp) -> None:
        self._app, self._running = app, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or reject it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if self._running >= CONNECTIONS:
            refusal = failure(f"{CONNECTIONS} requests are in progress. Ask again later", "busy")
            await JSONResponse(refusal, 503)(scope, receive, send)
            return
        self._running += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._running -= 1
