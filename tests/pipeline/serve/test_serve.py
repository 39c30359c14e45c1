"""`posttrain serve`: what a client of OpenAI's API gets, who may ask, and how it ends."""

from __future__ import annotations

import json
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

import posttrain
from posttrain.errors import ParamsError, PipelineError
from posttrain.measure.terminal import escaped
from posttrain.pipeline.lock.digests import Digests
from posttrain.pipeline.serve.loopback import listening
from posttrain.pipeline.serve.policy import Policy
from posttrain.pipeline.serve.server import _secret
from tests.library.models.tiny import tiny_folder
from tests.pipeline.serve.served import Served
from tests.workspace import ROOT, environment

TALK = [{"role": "user", "content": "1+1="}]
SCORED = {"prompt_logprobs": 0, "max_tokens": 1}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def served(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    started = Served(model, tmp_path_factory.mktemp("cache"))
    yield started
    assert started.end() == 0
    assert "Traceback" not in started.output


def asked(served: Served, model: Path, **settings: Any) -> Any:
    status, found = served.ask("/chat/completions", {"model": str(model), "messages": TALK, **settings})
    assert status == 200, found
    return found


@pytest.mark.slow
def test_it_answers_as_the_sampler_does(served: Served, model: Path) -> None:
    status, listed = served.ask("/models")
    assert status == 200 and [one["id"] for one in listed["data"]] == [str(model)]
    assert listed["data"][0]["weights"] == Digests().of(str(model))
    found = asked(served, model, temperature=0, max_tokens=12, logprobs=True)
    ours = posttrain.sample(*posttrain.load_model(model), ["1+1="], greedy=True, max_tokens=12)
    (choice,) = found["choices"]
    assert choice["message"] == {"role": "assistant", "content": ours.texts[0]}
    assert choice["finish_reason"] == ("length" if ours.truncated[0] else "stop")
    logps = [one["logprob"] for one in choice["logprobs"]["content"]]
    assert logps == pytest.approx(ours.logp[ours.mask].tolist(), abs=1e-5)
    completion = int(ours.mask.sum())
    prompt = ours.ids.shape[1] - completion
    assert found["usage"] == {
        "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
    }  # fmt: skip


@pytest.mark.slow
def test_a_seed_gives_the_same_answers_whatever_else_is_asked(served: Served, model: Path) -> None:
    def texts(seed: int | None, n: int) -> list[str]:
        found = asked(served, model, seed=seed, n=n, max_tokens=20)
        return [choice["message"]["content"] for choice in found["choices"]]

    alone = {seed: texts(seed, 3) for seed in range(4)}
    with ThreadPoolExecutor(12) as pool:
        together = list(pool.map(lambda seed: texts(seed % 4, 3), range(24)))
    assert all(found == alone[nth % 4] for nth, found in enumerate(together))
    assert len({tuple(found) for found in alone.values()}) == 4 and len(set(alone[0])) == 3
    assert alone[0][:1] == texts(0, 1)
    assert texts(None, 2) != texts(None, 2)


def test_stop_strings_end_a_completion_and_are_left_out(served: Served, model: Path) -> None:
    (whole,) = asked(served, model, temperature=0, max_tokens=30)["choices"]
    text = whole["message"]["content"]
    stop = text[len(text) // 2 : len(text) // 2 + 2]
    (cut,) = asked(served, model, temperature=0, max_tokens=30, stop=stop)["choices"]
    assert cut["message"]["content"] == text[: text.index(stop)] and cut["finish_reason"] == "stop"


def test_a_stream_has_the_same_text(served: Served, model: Path) -> None:
    settings = {"n": 2, "seed": 5, "max_tokens": 10}
    whole = asked(served, model, **settings)
    stream = asked(served, model, **settings, stream=True, stream_options={"include_usage": True})
    *chunks, done = [line.removeprefix("data: ") for line in stream.split("\n\n") if line]
    parsed = [json.loads(one) for one in chunks]
    texts = ["", ""]
    for one in parsed[:-1]:
        (choice,) = one["choices"]
        texts[choice["index"]] += choice["delta"].get("content", "")
    assert done == "[DONE]" and texts == [one["message"]["content"] for one in whole["choices"]]
    assert parsed[-1]["usage"] == whole["usage"]


@pytest.mark.parametrize(
    ("change", "status", "said"),
    [
        ({"model": "gpt-5"}, 404, "the model 'gpt-5' is not served"),
        ({"max_tokens": 300}, 400, "max_tokens is 300, together more than the model's context of 256"),
        ({"messages": [{"role": "user", "content": "1+1=" * 300}]}, 400, "model's context of 256"),
        ({"messages": []}, 400, "request.messages"),
        ({"messages": [{"role": "boss", "content": "x"}]}, 400, "request.messages.0.role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "request.messages.0.content"),
        ({"temperatur": 1}, 400, "Did you mean 'temperature'?"),
        ({"frequency_penalty": 0.5}, 400, "request.frequency_penalty"),
        ({"n": 0}, 400, "request.n"),
        ({"temperature": -1}, 400, "request.temperature"),
        ({"stop": ""}, 400, "empty string"),
        ({"tools": []}, 400, "request.tools: unknown key"),
        ({**SCORED, "top_k": 5, "seed": 0}, 400, "top_k, seed: not supported with prompt_logprobs"),
        ({**SCORED, "temperature": 0.5}, 400, "temperature: not supported with prompt_logprobs"),
    ],
)
def test_what_it_cannot_answer_is_refused(
    served: Served, model: Path, change: dict[str, Any], status: int, said: str
) -> None:
    found, reply = served.ask("/chat/completions", {"model": str(model), "messages": TALK, **change})
    assert found == status and said in reply["error"]["message"]


def test_log_probs_of_a_conversation_are_asked_for_with_temperature_0(served: Served, model: Path) -> None:
    """As reward likelihood does."""
    plain, cold = asked(served, model, **SCORED), asked(served, model, **SCORED, temperature=0, logprobs=False)
    assert plain["prompt_logprobs"] == cold["prompt_logprobs"] and len(plain["prompt_logprobs"]) > 2


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "not valid JSON"),
        (b"\xff", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"[]", "request = []"),
    ],
)
def test_bodies_that_are_no_request(served: Served, body: bytes, said: str) -> None:
    status, reply = served.ask("/chat/completions", body)
    assert status == 400 and said in reply["error"]["message"]


def test_a_body_that_is_too_large_is_refused(served: Served) -> None:
    status, reply = served.ask("/chat/completions", b" " * (5 * 2**20))
    assert status == 413 and "more than 4 MiB" in reply["error"]["message"]


def test_a_prompt_that_cannot_fit_is_refused_before_its_tokens_are_counted(served: Served, model: Path) -> None:
    """4 MB take minutes to divide into tokens, and everybody else waits."""
    long = {"messages": [{"role": "user", "content": "1+1=" * 1_000_000}]}
    for settings in (long, {**long, **SCORED}):
        status, reply = served.ask("/chat/completions", {"model": str(model), **settings})
        message = reply["error"]["message"]
        assert status == 400 and "4,000,000 characters, more than the model's context of 256 tokens" in message
    assert asked(served, model, max_tokens=1)["choices"]


def test_idle_connections_take_no_place_from_requests(served: Served, model: Path) -> None:
    host, port = served.url.removeprefix("http://").removesuffix("/v1").split(":")
    idle = [socket.create_connection((host, int(port))) for _ in range(150)]
    begun = [socket.create_connection((host, int(port))) for _ in range(150)]
    for one in begun:
        one.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n")
    try:
        assert served.ask("/models")[0] == 200 and asked(served, model, max_tokens=1)["choices"]
        idle[0].settimeout(30)
        assert idle[0].recv(1) == b"", "the longest idle one is closed"
    finally:
        for one in (*idle, *begun):
            one.close()


def test_a_client_that_hangs_up_is_no_error(model: Path, serve: Callable[..., Served]) -> None:
    started = serve(model)
    host, port = started.url.removeprefix("http://").removesuffix("/v1").split(":")
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {started.key}\r\n"
    body = json.dumps({"model": str(model), "messages": TALK, "max_tokens": 200, "n": 128}).encode()
    for sent in (b"{", body[:-5], body):
        with socket.create_connection((host, int(port))) as client:
            client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + sent)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
    assert started.ask("/models")[0] == 200
    assert started.end() == 0 and "Traceback" not in started.output, started.output


def test_without_the_secret_nothing_is_answered(served: Served, model: Path) -> None:
    body = {"model": str(model), "messages": TALK}
    for key in ("", "wrong", served.key[:-1], f"{served.key}x"):
        for path, sent in (("/models", None), ("/chat/completions", body)):
            status, reply = served.ask(path, sent, key)
            assert status == 401 and served.key not in json.dumps(reply)
    assert served.key not in served.output


@pytest.mark.slow
def test_the_secret_is_in_a_file_for_its_owner_and_goes_with_the_server(
    model: Path, serve: Callable[..., Served]
) -> None:
    started = serve(model)
    file = Path(started.place)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    port = int(started.url.removesuffix("/v1").rpartition(":")[2])
    server = psutil.Process(started.process.pid)
    bound = [
        one.laddr.ip
        for process in (server, *server.children(recursive=True))
        for one in process.net_connections("inet")
        if one.status == psutil.CONN_LISTEN and one.laddr.port == port
    ]
    assert bound and set(bound) <= {"127.0.0.1", "::1"}, bound
    with pytest.raises(PipelineError, match=f"--port {port}: the port cannot be used"):
        listening(port)
    assert started.end(signal.SIGTERM) == 0
    assert not file.exists() and started.key not in started.output and "has ended" in started.output


@pytest.mark.slow
def test_ctrl_c_finishes_what_was_asked_and_the_secret_may_be_chosen(
    model: Path, serve: Callable[..., Served], tmp_path: Path
) -> None:
    started = serve(model, POSTTRAIN_SERVE_KEY="abcdefgh-01234567")
    assert started.place == "$POSTTRAIN_SERVE_KEY" and not list(tmp_path.rglob("*.key"))
    assert started.ask("/models")[0] == 200 and started.ask("/models", key="wrong")[0] == 401
    body = {"model": str(model), "messages": TALK, "n": 128, "max_tokens": 200, "seed": 1}
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(started.ask, "/chat/completions", body)
        time.sleep(0.5)  # long enough to be in progress
        assert started.end() == 0
        status, found = waiting.result()
    assert status == 200 and len(found["choices"]) == 128
    assert "Traceback" not in started.output


@pytest.mark.parametrize(
    "weak", ["", "too-short", "with spaces in the key", "with-a-line-break\n", "wéird-key-0123456789"]
)
def test_a_weak_secret_is_refused_and_not_shown(weak: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTTRAIN_SERVE_KEY", weak)
    with pytest.raises(ParamsError, match="at least 16") as caught, _secret(tmp_path / "key"):
        pass
    assert not weak or weak not in str(caught.value)


@pytest.mark.slow
def test_a_chat_in_the_terminal(model: Path) -> None:
    command = [sys.executable, "-m", "posttrain", "chat", str(model), "--temperature", "0"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(), input="1+1=\n\n1+1=\n", capture_output=True, text=True, timeout=60
    )
    text = posttrain.sample(*posttrain.load_model(model), ["1+1="], greedy=True, max_tokens=150).texts[0]
    assert done.returncode == 0, done.stderr
    answers = done.stdout.split("> ")
    begins = escaped(text[:20])  # a terminal would obey the control characters of an untrained model
    assert answers[1].startswith(begins) and answers[3].startswith(begins)


@pytest.mark.slow
def test_a_model_that_is_not_there() -> None:
    with pytest.raises(ParamsError, match=r"^online/nothing: this is not a model\."):
        Policy("online/nothing", 1)
