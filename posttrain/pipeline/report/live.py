"""`posttrain watch`: serve the report's page on loopback, with a login, and update it while stages run."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import secrets
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from posttrain.errors import PosttrainError
from posttrain.pipeline.lock.digests import LOCK, Mark, mark
from posttrain.pipeline.lock.graph import Pipeline
from posttrain.pipeline.lock.running import RWLOCK, running_stages
from posttrain.pipeline.lock.status import running_lines
from posttrain.pipeline.params.params_file import read
from posttrain.pipeline.report.build import TITLE, read_report
from posttrain.pipeline.report.heading import heading
from posttrain.pipeline.report.last_rollouts import last_rollouts
from posttrain.pipeline.report.markup import Markup, element
from posttrain.pipeline.report.page import page
from posttrain.pipeline.report.stale_results import staleness
from posttrain.pipeline.serve.loopback import HOST, listening
from posttrain.pipeline.workspace import PARAMS_FILE

SHOWN: Final = ("plots", "results", "metrics", "records", PARAMS_FILE, LOCK, str(RWLOCK))
"""The files and folders that the page is made from."""
REST: Final = 4
"""The page is made again only after this many times its own build time, so it uses at most a fifth of a core."""
HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass
class LivePage:
    """The page, which is rebuilt when one of its source files changes."""

    text: str = ""
    version: str = ""
    error: str = ""
    """Why the page is outdated, or why there is none."""
    _marks: dict[str, Mark] = field(default_factory=dict)
    _due: float = 0.0

    def renew(self) -> None:
        """Rebuild the page if enough time has passed and a file has changed."""
        begun = time.monotonic()
        if begun < self._due:
            return
        try:
            if (marks := _marks()) == self._marks:
                return
            version = secrets.token_hex(8)
            self.text, self.version, self.error, self._marks = _made(version), version, "", marks
        except (PosttrainError, OSError) as error:  # a file that is being written, or params.yaml while it is edited
            self.error = str(error)
        self._due = time.monotonic() + REST * (time.monotonic() - begun)

    def state(self) -> dict[str, Any]:
        """Return the answer to the open page's polling: its version, and a line for each running stage."""
        lines = [f"error: {self.error}"] if self.error else []
        with contextlib.suppress(PosttrainError):
            lines += running_lines(running_stages(Pipeline())) or ["nothing runs"]
        return {"version": self.version, "lines": lines}


def _marks() -> dict[str, Mark]:
    marks = {}
    for name in SHOWN:
        place = Path(name)
        for file in (place, *place.rglob("*")):
            with contextlib.suppress(FileNotFoundError):
                if file.is_file():
                    marks[str(file)] = mark(file)
    return marks


def _made(version: str) -> str:
    settings = read()
    report = read_report(staleness().reasons)
    line = element("div", Markup(), id="live", class_="note", data_version=version)
    last = last_rollouts(settings, running_stages(Pipeline()))
    written = {**report.written, "heading": Markup(heading() + line), "last": last}
    return page(report.data, TITLE, written, live=["live.js"])


def application(live: LivePage, secret: str, port: int) -> Starlette:
    """Return the server: `/?key=SECRET` logs in once, then `/` and `/state` work."""
    cookie, busy = f"posttrain-watch-{port}", asyncio.Lock()
    hosts = {f"{HOST}:{port}", f"localhost:{port}"}

    def allowed(request: Request) -> bool:
        given = request.cookies.get(cookie, "")
        return request.headers.get("host") in hosts and hmac.compare_digest(given.encode(), secret.encode())

    async def renewed() -> None:
        async with busy:
            await asyncio.to_thread(live.renew)

    async def whole(request: Request) -> Response:
        key = request.query_params.get("key")
        if key is not None and hmac.compare_digest(key.encode(), secret.encode()):
            answer: Response = RedirectResponse("/", 303, HEADERS)
            answer.set_cookie(cookie, secret, httponly=True, samesite="lax")
            return answer
        if not allowed(request):
            return _refused()
        await renewed()
        if not live.text:
            return PlainTextResponse(f"{live.error}\n", 503, {**HEADERS, "Refresh": "5"})
        return Response(live.text, 200, HEADERS, "text/html")

    async def state(request: Request) -> Response:
        if not allowed(request):
            return _refused()
        await renewed()
        return JSONResponse(live.state(), 200, HEADERS)

    return Starlette(routes=[Route("/", whole), Route("/state", state)])


def _refused() -> Response:
    return PlainTextResponse("open the address that `posttrain watch` has printed\n", 401, HEADERS)


def watch(port: int) -> str:
    """Serve the page until Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt), listening(port) as listener:
        port, secret = listener.getsockname()[1], secrets.token_urlsafe(32)
        served = application(LivePage(), secret, port)
        config = uvicorn.Config(served, log_level="warning", access_log=False, server_header=False)
        print(f"open http://{HOST}:{port}/?key={secret}\nCtrl-C ends it", flush=True)
        uvicorn.Server(config).run(sockets=[listener])
    return "the page is no longer served"
