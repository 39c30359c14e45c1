"""The HTTP client for served models: timeouts, retries, rate and size limits. No message shows the secret."""

from __future__ import annotations

import asyncio
import email.utils
import json
import os
import random
import time
import warnings
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, Final, Never, TypeVar
from urllib.parse import urlsplit

import httpx
from pydantic import Field, field_validator

from posttrain.errors import RewardError, excerpt, shortened
from posttrain.rollout import Score, Status
from posttrain.settings.params import Params

T = TypeVar("T")
warnings.filterwarnings("ignore", "coroutine 'connect_tcp", RuntimeWarning)  # anyio's, where a request is cancelled

LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
BUSY: Final = (408, 425, 429)
"""Statuses (besides 5xx) that are retried."""
UNREADABLE: Final = (400, 413, 422)
"""Statuses of requests that the endpoint can never answer, e.g. a text longer than the model's context."""
MALFORMED: Final = (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError)
"""The errors of code that reads unexpected JSON."""
SLOWEST_BACKOFF_S: Final = 30.0
MIB: Final = 2**20
LOGPROB_BYTES: Final = 512
"""Bytes of a reply per log-prob: its id, number, rank and the token's text, which JSON may escape."""
NO_LOGPROBS: Final = "the reply has no prompt_logprobs: it must be vLLM or posttrain's own server"
DECIDED: Final = {
    **dict.fromkeys(("messages", "prompt"), "what is asked"), "model": "the key model", "prompt_logprobs": "the key top"
}  # fmt: skip
"""Keys that `body` may not contain, and the setting for each."""


class ConnectionParams(Params):
    """The endpoint: address, timeouts, retries and rate limit."""

    url: str = Field(description="base URL of the endpoint, e.g. http://127.0.0.1:8000/v1")
    model: str = Field(min_length=1, description="name of the model at the endpoint")
    key: str | None = Field(None, description="name of the environment variable that contains the secret")
    body: dict[str, Any] = Field(default_factory=dict, description="additional keys of the request; null removes a key")
    timeout: float = Field(60.0, gt=0, description="timeout of one request in seconds")
    retries: int = Field(4, ge=0, le=20, description="retries after a failure (429, 5xx, timeout, hang-up)")
    give_up_after: float = Field(
        300.0, gt=0, description="seconds without any reply after which the rest of a round fails"
    )
    concurrency: int = Field(8, ge=1, le=256, description="parallel requests")
    per_minute: float | None = Field(None, gt=0, description="maximum requests per minute; null: no limit")

    @field_validator("key", mode="before")
    @classmethod
    def _names_a_variable(cls, key: object) -> object:
        if key is not None and not (isinstance(key, str) and key.isidentifier() and key.isascii() and key.isupper()):
            raise ValueError("give the NAME of an environment variable in capitals, never the secret itself")
        return key

    @field_validator("url", mode="before")
    @classmethod
    def _is_plain(cls, url: object) -> object:
        try:
            parts = urlsplit(url) if isinstance(url, str) else None
            plain = parts is not None and parts.scheme in ("http", "https") and parts.hostname and (parts.port or True)
        except ValueError:
            plain = False
        if not plain or parts is None or parts.username or parts.password or parts.query or parts.fragment:
            raise ValueError(
                "give http(s)://HOST[:PORT]/PATH without login and '?'; `key` names the variable with the secret"
            )
        if parts.path.rstrip("/").endswith("/completions"):
            raise ValueError("posttrain adds the path after /v1. Write http(s)://HOST[:PORT]/v1")
        return url

    @field_validator("body")
    @classmethod
    def _leaves_the_question(cls, body: dict[str, Any]) -> dict[str, Any]:
        if decided := [name for name in DECIDED if name in body]:
            raise ValueError(f"{decided[0]}: {DECIDED[decided[0]]} sets it. Remove it")
        return body


class NoReply(Exception):  # noqa: N818  a result, not a defect
    """The endpoint gave no usable reply after all tries."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status: Status = status
        self.reason = reason

    @property
    def score(self) -> Score:
        """The score of a sample without a reply."""
        return Score(0.0, self.status, self.reason)


class TryAgainError(Exception):
    """One try failed. `wait`: the waiting time in seconds that the endpoint requests."""

    def __init__(self, reason: str, wait: float = 0.0) -> None:
        super().__init__(reason)
        self.wait = wait


class SilentError(TryAgainError):
    """One try received no answer."""


class Connection:
    """Sends requests to one endpoint and counts them in this process."""

    def __init__(self, params: ConnectionParams, where: str) -> None:
        self._params, self._where = params, where
        self._headers = {"Accept-Encoding": "identity"}
        if params.key is not None:
            self._headers["Authorization"] = f"Bearer {_secret(params.key, where)}"
        self._next_start = self._paused_until = 0.0
        self._given_up = ""
        self.counts: Counter[str] = Counter()

    def run(self, questions: Coroutine[Any, Any, T]) -> T:
        """Return the result of a round of questions. In a notebook (with its own event loop), a thread runs it."""

        async def opened() -> T:
            async with self._opened():
                return await questions

        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(opened())
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, opened()).result()

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[None]:
        """Open the connections. Redirects are not followed, because they could send the secret to another host."""
        local = urlsplit(self._params.url).hostname in LOOPBACK
        self._replied, self._given_up = time.monotonic(), ""
        self._slots = asyncio.Semaphore(self._params.concurrency)
        limits = httpx.Limits(max_connections=self._params.concurrency)
        async with httpx.AsyncClient(
            headers=self._headers, timeout=self._params.timeout, limits=limits, trust_env=not local
        ) as self._client:
            yield

    async def post(
        self, path: str, body: Mapping[str, Any], read: Callable[[Any], T], malformed: str, largest: int = MIB
    ) -> T:
        """Return `read` of a reply's JSON. Raise NoReply after the last try; RewardError if no request can succeed.

        `path`: the part after the address. `malformed`: the reason that is given if `read` cannot read a reply, which
        causes another try.
        """
        async with self._slots:
            for number in range(self._params.retries + 1):
                self._check_given_up()
                await self._turn()
                self._check_given_up()
                try:
                    result = _parsed(await self._try(path, body, largest), read, malformed)
                except TryAgainError as error:
                    failed, wait = str(error), max(error.wait, _backoff(number))
                else:
                    self._replied, self._given_up = time.monotonic(), ""
                    return result
                silent = time.monotonic() - self._replied
                if silent + wait > self._params.give_up_after:
                    self._given_up = f"{failed}; given up after {silent:.0f} s without any reply"
                    self._check_given_up()
                if number < self._params.retries:
                    await asyncio.sleep(wait)
            raise NoReply("infrastructure", f"{failed} (tries: {self._params.retries + 1})")

    async def post_for_logprobs(self, path: str, body: Mapping[str, Any], read: Callable[[Any], T], tokens: int) -> T:
        """Return `read` of a reply that has at most `tokens` log-probs."""
        return await self.post(path, body, read, NO_LOGPROBS, MIB + tokens * LOGPROB_BYTES)

    def _check_given_up(self) -> None:
        """Raise if another question of the round has given up and none was answered since."""
        if self._given_up:
            raise NoReply("infrastructure", self._given_up)

    async def _turn(self) -> None:
        """Wait for the rate limit, and for any pause that the endpoint requested."""
        start = max(time.monotonic(), self._next_start)
        self._next_start = start + (60.0 / self._params.per_minute if self._params.per_minute else 0.0)
        while (wait := max(start, self._paused_until) - time.monotonic()) > 0:
            await asyncio.sleep(wait)

    async def exchange(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, largest: int = MIB
    ) -> tuple[httpx.Response, bytes]:
        """Return the reply to one request and its bytes, whatever its status. Raise TryAgainError if none is usable."""
        url, seconds = self._params.url, self._params.timeout
        if path:
            url = f"{url.rstrip('/')}/{path}"
        try:
            async with asyncio.timeout(seconds), self._client.stream(method, url, json=body) as response:
                return response, await _limited(response, largest)
        except (TimeoutError, httpx.TimeoutException) as error:
            raise SilentError(f"no reply within {seconds:g} s") from error
        except httpx.RequestError as error:
            raise SilentError(f"the connection failed ({type(error).__name__})") from error

    async def _try(self, path: str, body: Mapping[str, Any], largest: int) -> bytes:
        body = {name: value for name, value in {**body, **self._params.body}.items() if value is not None}
        self.counts["requests"] += 1
        response, content = await self.exchange("POST", path, body, largest)
        if response.status_code != 200:
            self._refused(response, content)
        return content

    def _refused(self, response: httpx.Response, content: bytes) -> Never:
        status = response.status_code
        if status in BUSY or status >= 500:
            wait = _retry_after(response.headers.get("retry-after", ""))
            self._paused_until = max(self._paused_until, time.monotonic() + min(wait, self._params.give_up_after))
            raise TryAgainError(f"HTTP {status}", wait)
        if status in UNREADABLE:
            raise NoReply("error", f"HTTP {status}: {self._message(content)}")
        what, fix = f"{self._params.url} answers HTTP {status}", "Check url and model"
        if response.is_redirect:
            fix = "posttrain does not follow its redirect. Set url to the final address"
        elif status in (401, 403):
            name = self._params.key
            fix = f"Put a valid key into ${name}" if name else "Set `key` to the environment variable with its key"
        raise RewardError(what=what, where=self._where, fix=fix)

    def _message(self, content: bytes) -> str:
        """Return the endpoint's error message as one line without the secret."""
        try:
            text = str(json.loads(content)["error"]["message"])
        except MALFORMED:
            text = content.decode(errors="replace")
        secret = self._headers.get("Authorization", "").removeprefix("Bearer ")
        return shortened((text.replace(secret, "***") if secret else text), 200)


def _parsed(content: bytes, read: Callable[[Any], T], malformed: str) -> T:
    """Return `read` of the parsed JSON."""
    try:
        return read(json.loads(content))
    except MALFORMED as error:
        raise TryAgainError(malformed) from error


async def _limited(response: httpx.Response, largest: int) -> bytes:
    """Return the bytes of a reply. Reject a compressed one, which was not requested and may unpack to gigabytes."""
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise TryAgainError(
            f"the reply is compressed ({excerpt(encoding, 40)}), but posttrain did not request compression"
        )
    content = bytearray()
    async for chunk in response.aiter_raw(65_536):
        content += chunk
        if len(content) > largest:
            raise TryAgainError(f"the reply is larger than {largest // MIB} MiB")
    return bytes(content)


def _secret(name: str, where: str) -> str:
    """Return the secret in an environment variable. No message shows its value."""
    secret = os.environ.get(name, "").strip()
    if not secret:
        what, fix = f"the environment variable {name} is not set", f"Run with {name}=... in the environment"
        raise RewardError(what=what, where=where, fix=fix)
    if not (secret.isascii() and secret.isprintable() and " " not in secret):
        what = f"the value of the environment variable {name} cannot be a key: it has spaces or odd characters"
        raise RewardError(what=what, where=where, fix="Set it to the key only")
    return secret


def _backoff(number: int) -> float:
    """Return 0.5 s, doubled with each try, minus a random part up to half, so that retries are spread."""
    return min(0.5 * 2.0**number, SLOWEST_BACKOFF_S) * random.uniform(0.5, 1.0)


def _retry_after(value: str) -> float:
    """Return the seconds in a Retry-After header, which is a number or a date; 0 if there is none."""
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except ValueError:
            return 0.0
    return max(seconds, 0.0) if seconds < float("inf") else 0.0
