"""`posttrain serve`: an OpenAI-compatible endpoint on loopback, protected by a secret."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import os
import secrets
import signal
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from posttrain.errors import ParamsError, PosttrainError
from posttrain.files import user_cache
from posttrain.pipeline.serve.connections import Busy, Connection
from posttrain.pipeline.serve.loopback import HOST, listening
from posttrain.pipeline.serve.policy import Answers, Job, Policy
from posttrain.pipeline.serve.requests import (
    ROWS,
    ChatRequest,
    TokensRequest,
    chat_scores,
    events,
    failure,
    parsed,
    reply,
    scores,
)

SECRET = "POSTTRAIN_SERVE_KEY"
"""The environment variable with a secret that the user chooses."""
LARGEST = 4 * 2**20
"""The most bytes of a request."""
MOST = 16 * LARGEST
"""The bytes of a too large request after which its connection is closed."""
BODY_S = 30.0
"""Seconds that a request's body may take."""
GRACE_S = 10
"""Seconds that Ctrl-C waits for requests in progress."""

Result = Answers | PosttrainError
Waiting = tuple[Job, asyncio.Future[Result]]


class Batcher:
    """Collects waiting requests and answers them batch by batch in one thread."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.turn = asyncio.Lock()
        """Held by what uses the model: CUDA captures no graph while another thread works on the device."""
        self._waiting: deque[Waiting] = deque()
        self._arrived = asyncio.Event()

    async def answer(self, job: Job) -> Result:
        """Return the answers to a request, after earlier requests."""
        result: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((job, result))
        self._arrived.set()
        return await result

    async def run(self) -> None:
        """Answer batch after batch until cancelled."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while batch := self._next():
                await self._answer_all(batch)

    def _next(self) -> list[Waiting]:
        """Return the next batch: the first waiting requests that are not cancelled."""
        batch, size = list[Waiting](), 0
        while self._waiting and (not batch or size + self._waiting[0][0].n <= ROWS):
            job, result = self._waiting.popleft()
            if not result.done():
                batch.append((job, result))
                size += job.n
        return batch

    async def _answer_all(self, batch: list[Waiting]) -> None:
        try:
            async with self.turn:
                answers = await asyncio.to_thread(self._policy.answer, [job for job, _ in batch])
        except Exception as error:  # noqa: BLE001  a defect: each of these requests raises it, and the server keeps running
            for _, result in batch:
                if not result.done():
                    result.set_exception(error)
            return
        for (_, result), answer in zip(batch, answers, strict=True):
            if not result.done():
                result.set_result(answer)


def application(policy: Policy, name: str, secret: str) -> Starlette:
    """Return the endpoint of a policy."""
    batcher = Batcher(policy)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(batcher.run())
        yield
        task.cancel()

    async def models(request: Request) -> Response:
        if not _authorised(request, secret):
            return _refusal(401, _NO_KEY, "invalid_api_key")
        served = {"id": name, "object": "model", "owned_by": "posttrain", "weights": policy.weights}
        return JSONResponse({"object": "list", "data": [served]})

    def another(model: str) -> Response | None:
        text = f"the model '{model:.100}' is not served; this is {name}"
        return None if model == name else _refusal(404, text, "model_not_found")

    async def chat(request: Request) -> Response:
        asked = await asyncio.to_thread(parsed, await _body(request), ChatRequest)
        if refusal := another(asked.model):
            return refusal
        if asked.prompt_logprobs is not None:
            return await _scored(policy, asked, batcher.turn)
        result = await _unless_gone(request, asyncio.ensure_future(batcher.answer(asked.job())))
        if result is None:
            return _GONE
        if isinstance(result, PosttrainError):
            raise result
        if asked.stream:
            return Response(events(policy, asked, result), media_type="text/event-stream")
        return JSONResponse(reply(policy, asked, result))

    async def tokens(request: Request) -> Response:
        asked = await asyncio.to_thread(parsed, await _body(request), TokensRequest)
        if refusal := another(asked.model):
            return refusal
        async with batcher.turn:
            result = await asyncio.to_thread(policy.score, asked.prompt, asked.prompt_logprobs)
        return JSONResponse(scores(policy, asked, result))

    routes = [
        Route("/v1/models", models, methods=["GET"]),
        Route("/v1/chat/completions", _checked(chat, secret), methods=["POST"]),
        Route("/v1/completions", _checked(tokens, secret), methods=["POST"]),
    ]
    return Starlette(routes=routes, lifespan=lifespan, middleware=[Middleware(Busy)])


def _checked(answer: Callable[[Request], Awaitable[Response]], secret: str) -> Callable[[Request], Awaitable[Response]]:
    """Return an endpoint that requires the key and reports errors in a request."""

    async def endpoint(request: Request) -> Response:
        if not _authorised(request, secret):
            return _refusal(401, _NO_KEY, "invalid_api_key")
        try:
            return await answer(request)
        except ClientDisconnect:
            return _GONE
        except _BodyError as error:
            return _refusal(error.status, str(error), "invalid_request")
        except PosttrainError as error:
            return _refusal(400, error.what if isinstance(error, ParamsError) else str(error), "invalid_request")

    return endpoint


async def _scored(policy: Policy, asked: ChatRequest, turn: asyncio.Lock) -> Response:
    async with turn:
        scored = await asyncio.to_thread(policy.score_chat, asked.turns, opened=asked.add_generation_prompt)
    return JSONResponse(chat_scores(policy, asked, scored))


_GONE = Response(status_code=499)
"""The reply for a client that has closed the connection. It is not sent."""
_NO_KEY = "send the server's key as 'Authorization: Bearer KEY'"


def _authorised(request: Request, secret: str) -> bool:
    return hmac.compare_digest(request.headers.get("authorization", "").encode(), f"Bearer {secret}".encode())


def _refusal(status: int, message: str, code: str) -> Response:
    return JSONResponse(failure(message, code), status_code=status)


async def _unless_gone(request: Request, task: asyncio.Future[Result]) -> Result | None:
    """Return the result. If the client has closed the connection, cancel the work and return None."""
    while not task.done():
        await asyncio.wait([task], timeout=1)
        if not task.done() and await request.is_disconnected():
            task.cancel()
            return None
    return task.result()


class _BodyError(Exception):
    """A body that cannot be read completely."""

    def __init__(self, status: int, what: str) -> None:
        super().__init__(what)
        self.status = status


async def _body(request: Request) -> bytes:
    """Return the body. A too large body is read without keeping it, because clients first send all of it."""
    body, size = bytearray(), 0
    too_large = _BodyError(413, f"the body has more than {LARGEST // 2**20} MiB. Send less text")
    try:
        async with asyncio.timeout(BODY_S):
            async for chunk in request.stream():
                size += len(chunk)
                if size <= LARGEST:
                    body += chunk
                elif size > MOST:
                    raise too_large
    except TimeoutError as error:
        raise _BodyError(408, f"the body did not come within {BODY_S:g} s. Send it at once") from error
    if size > LARGEST:
        raise too_large
    return bytes(body)


def serve(model: str, port: int, threads: int) -> str:
    """Serve a model until Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # it ends like Ctrl-C, and removes the key
    with contextlib.suppress(KeyboardInterrupt), listening(port) as listener:
        policy, port = Policy(model, threads), listener.getsockname()[1]
        with _secret(user_cache() / f"serve-{port}.key") as (secret, place):
            config = uvicorn.Config(
                application(policy, model, secret),
                lifespan="on",
                log_level="warning",
                access_log=False,
                server_header=False,
                http=Connection,
                ws="none",
                timeout_graceful_shutdown=GRACE_S,
            )
            print(f"serving {model} at http://{HOST}:{port}/v1; its key is in {place}. Ctrl-C ends it", flush=True)
            uvicorn.Server(config).run(sockets=[listener])
    return f"the server of {model} has ended"


@contextlib.contextmanager
def _secret(file: Path) -> Iterator[tuple[str, str]]:
    """Yield the secret and its place: the user's own, or a new one in a file that only its owner can read."""
    given = os.environ.get(SECRET)
    if given is not None:
        if len(given) < 16 or not given.isascii() or not given.isprintable() or " " in given:
            fix = "Use at least 16 letters and digits, or unset it to get a generated key"
            raise ParamsError(what="this is not a valid key", where=SECRET, fix=fix)
        yield given, f"${SECRET}"
        return
    secret = secrets.token_urlsafe(32)
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file.unlink(missing_ok=True)  # of a server that was killed: this one has the port now
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as out:
        out.write(f"{secret}\n")
    try:
        yield secret, str(file)
    finally:
        file.unlink(missing_ok=True)
