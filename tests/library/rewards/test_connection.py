"""Requests to an endpoint: what is retried, what is given up, and that no secret is shown."""

from __future__ import annotations

import asyncio
import email.utils
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import time
from typing import Any

import pytest

from posttrain.errors import ParamsError, RewardError
from posttrain.rewards.connection import (
    Connection,
    ConnectionParams,
    NoReply,
    TryAgainError,
    _backoff,
    _parsed,
    _retry_after,
    _secret,
)
from posttrain.rollout import Score
from posttrain.settings.params import check

SECRET = "sk-hidden-1234567"


class Endpoint(BaseHTTPRequestHandler):
    """Answers with what the test has put into `replies`; the last one again and again."""

    replies: list[tuple[int, dict[str, str], bytes]]
    asked: list[tuple[str, dict[str, Any], str | None]]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append((self.path, body, self.headers.get("Authorization")))
        status, headers, content = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posttrain.rewards.connection._backoff", lambda number: 0.0)
    monkeypatch.setenv("ENDPOINT_KEY", SECRET)
    Endpoint.replies, Endpoint.asked = [reply({"n": 3})], []


def reply(content: Any, status: int = 200, **headers: str) -> tuple[int, dict[str, str], bytes]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return status, named, content if isinstance(content, bytes) else json.dumps(content).encode()


def params(url: str, **settings: Any) -> ConnectionParams:
    return ConnectionParams(url=url, model="m", **settings)


def asked(url: str, largest: int = 2**20, **settings: Any) -> Any:
    """The number in the reply to one question."""
    connection = Connection(params(url, **settings), "reward.judge")
    return connection.run(connection.post("score", {"text": "a", "n": 1}, lambda found: found["n"], "no n", largest))


def test_a_reply_is_read(url: str) -> None:
    assert asked(url, key="ENDPOINT_KEY", body={"n": None, "more": 2}) == 3
    assert Endpoint.asked == [("/v1/score", {"text": "a", "more": 2}, f"Bearer {SECRET}")]


def test_a_round_beside_a_loop_runs_in_a_thread(url: str) -> None:
    async def notebook() -> Any:
        return asked(url)

    assert asyncio.run(notebook()) == 3


def test_logprobs_may_be_larger(url: str) -> None:
    Endpoint.replies = [reply(json.dumps({"n": 4}).encode() + b" " * 2**20)]
    connection = Connection(params(url, retries=0), "reward.judge")
    assert connection.run(connection.post_for_logprobs("score", {}, lambda found: found["n"], 100)) == 4
    with pytest.raises(NoReply, match=r"the reply is larger than 1 MiB \(tries: 1\)"):
        asked(url, retries=0)


def test_failures_are_tried_again_and_counted(url: str) -> None:
    Endpoint.replies = [reply({}, 503), reply({}, 429, Retry_After="0"), reply({"m": 1}), reply({"n": 5})]
    connection = Connection(params(url, retries=3), "reward.judge")
    assert connection.run(connection.post("score", {}, lambda found: found["n"], "no n")) == 5
    assert connection.counts == {"requests": 4}


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (reply({}, 500), "HTTP 500 (tries: 2)"),
        (reply(b"no json"), "no n (tries: 2)"),
        (
            reply({"n": 1}, Content_Encoding="gzip"),
            "the reply is compressed ('gzip'), but posttrain did not request compression (tries: 2)",
        ),
    ],
)
def test_after_the_last_try_there_is_no_reply(url: str, given: Any, reason: str) -> None:
    Endpoint.replies = [given]
    with pytest.raises(NoReply) as failed:
        asked(url, retries=1)
    assert failed.value.score == Score(0.0, "infrastructure", reason)


def test_a_request_that_cannot_be_answered_is_an_error_without_the_secret(url: str) -> None:
    Endpoint.replies = [reply({"error": {"message": f"too long for {SECRET}"}}, 400)]
    with pytest.raises(NoReply) as failed:
        asked(url, key="ENDPOINT_KEY")
    assert failed.value.score == Score(0.0, "error", "HTTP 400: too long for ***")
    Endpoint.replies = [reply(b"plain words", 422)]
    with pytest.raises(NoReply, match="HTTP 422: plain words"):
        asked(url)


@pytest.mark.parametrize(
    ("status", "settings", "fix"),
    [
        (404, {}, "Check url and model"),
        (302, {}, "posttrain does not follow its redirect"),
        (401, {}, "Set `key` to the environment variable with its key"),
        (403, {"key": "ENDPOINT_KEY"}, "Put a valid key into $ENDPOINT_KEY"),
    ],
)
def test_other_refusals_end_the_run(url: str, status: int, settings: dict[str, Any], fix: str) -> None:
    Endpoint.replies = [reply({}, status, Location="http://127.0.0.1:1/")]
    with pytest.raises(RewardError) as refused:
        asked(url, **settings)
    assert refused.value.what == f"{url} answers HTTP {status}" and refused.value.fix.startswith(fix)


def test_nobody_listens() -> None:
    with pytest.raises(NoReply, match=r"the connection failed \(ConnectError\)"):
        asked("http://127.0.0.1:9/v1", retries=0)
    with pytest.raises(NoReply, match=r"\(ConnectError\); given up after 0 s without any reply"):
        asked("http://127.0.0.1:9/v1", give_up_after=1e-9)


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"url": "ftp://a"}, "give http(s)://HOST[:PORT]/PATH without login"),
        ({"url": "http://me:pw@a/v1"}, "give http(s)://HOST[:PORT]/PATH without login"),
        ({"url": "http://a:b/v1"}, "give http(s)://HOST[:PORT]/PATH without login"),
        ({"url": "http://a/v1/chat/completions"}, "posttrain adds the path after /v1"),
        ({"key": SECRET}, "give the NAME of an environment variable in capitals"),
        ({"body": {"model": "x"}}, "model: the key model sets it. Remove it"),
    ],
)
def test_settings_that_are_refused(settings: dict[str, Any], fault: str) -> None:
    with pytest.raises(ParamsError) as refused:
        check(ConnectionParams, {"url": "http://a/v1", "model": "m", **settings}, where="reward")
    assert fault in str(refused.value) and SECRET not in str(refused.value)


def test_settings_stay_as_they_are_given() -> None:
    found = params("https://a.example:8000/v1/", key="A_KEY", body={"top": 1})
    assert (found.url, found.key, found.body) == ("https://a.example:8000/v1/", "A_KEY", {"top": 1})
    assert params("http://a/v1").key is None


def test_the_secret_of_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _secret("ENDPOINT_KEY", "here") == SECRET
    for value, what in ((" ", "is not set"), ("two words", "has spaces or odd characters")):
        monkeypatch.setenv("ENDPOINT_KEY", value)
        with pytest.raises(RewardError, match=what):
            _secret("ENDPOINT_KEY", "here")


def test_json_that_cannot_be_read_causes_another_try() -> None:
    assert _parsed(b'{"n": 2}', lambda found: found["n"], "no n") == 2
    for content in (b"{}", b"[]", b"{"):
        with pytest.raises(TryAgainError, match="no n"):
            _parsed(content, lambda found: found["n"], "no n")


@pytest.mark.parametrize(("number", "longest"), [(0, 0.5), (3, 4.0), (20, 30.0)])
def test_waits_double_up_to_half_a_minute(number: int, longest: float) -> None:
    waits = [_backoff(number) for _ in range(50)]
    assert longest / 2 <= min(waits) and max(waits) <= longest


@pytest.mark.parametrize(("value", "seconds"), [("2.5", 2.5), ("-1", 0.0), ("inf", 0.0), ("soon", 0.0), ("", 0.0)])
def test_how_long_an_endpoint_asks_to_wait(value: str, seconds: float) -> None:
    assert _retry_after(value) == seconds


def test_an_endpoint_may_name_a_date() -> None:
    assert 50 < _retry_after(email.utils.formatdate(time() + 60)) <= 60
    assert _retry_after(email.utils.formatdate(time() - 60)) == 0.0
