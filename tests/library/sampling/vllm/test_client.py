"""The client of vLLM's servers, with a server of this process that decodes with our own sampler."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import httpx
import pytest

from posttrain.errors import EngineError
from posttrain.measure.counts import COUNTS
from posttrain.models.adapters import LoraOptions
from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.files.store import load_policy, load_tokenizer
from posttrain.models.lora import add, freeze
from posttrain.sampling.builtin import LocalSampler
from posttrain.sampling.sampler import Mixture, Request, SamplingParams, rest
from posttrain.sampling.vllm.client import EngineSampler, Patience
from posttrain.sampling.vllm.given import FROZEN
from posttrain.sampling.vllm.server import HEADER, LORA, version_of
from posttrain.text.chat import ChatText
from posttrain.text.stops import Stops
from tests.library.models.tiny import tiny_folder

CPU = Runtime(DeviceParams(device="cpu"))
PARAMS = SamplingParams(max_tokens=6)
REQUESTS = [Request([3, 4, 5 + nth % 3], f"p{nth % 3}:{nth}") for nth in range(5)]
IMPATIENT = Patience(silent_s=5, health_s=1, tries=2, pause_s=0.0)


class Handler(BaseHTTPRequestHandler):
    """One completion for each request."""

    def do_POST(self) -> None:
        server: Server = self.server.owner  # type: ignore[attr-defined]
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status, answer = server.answer(body)
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header(HEADER, server.held)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


class Unix(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


class Server:
    """What the client needs of an engine's process."""

    def __init__(self, model: Any, text: ChatText, folder: Path) -> None:
        self.model, self.text, self.folder = model, text, folder
        self.starts, self.alive, self.held, self.engine = 0, False, "", "vllm 0.30"
        self.faults: list[int] = []
        self.asked: list[dict[str, Any]] = []
        self.options: list[str] = []
        self.forgotten: list[Path] = []
        self.slept: list[int] = []
        self.shift = self.first_s = 0.0

    @property
    def socket(self) -> Path:
        return self.folder / "socket"

    def serve(self) -> Unix:
        made = Unix(str(self.socket), Handler)
        made.owner = self  # type: ignore[attr-defined]
        threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True).start()
        return made

    def answer(self, body: dict[str, Any]) -> tuple[int, Any]:
        self.asked.append(body)
        if self.faults:
            return self.faults.pop(), {}
        (seed, _, name), given = body["name"].partition(":"), body["sampling"]
        sampling = SamplingParams(max_tokens=given["max_tokens"], temperature=given["temperature"] or 1.0)
        stops = Stops(tuple(given["stop_token_ids"]), self.text.stops.decode)
        greedy = not given["temperature"]
        sampler = LocalSampler(self.model, stops, CPU)
        (done,) = sampler.generate([Request(body["prompt"], name)], sampling, int(seed), greedy=greedy)
        logps = [logp + self.shift for logp in done.logps]
        return 200, {
            "token_ids": done.ids,
            "prompt_tokens": len(body["prompt"]),
            "first_s": self.first_s,
            "logprobs": logps,
        }

    def start(self, model: Path, more: Sequence[str] = ()) -> dict[str, Any]:
        self.starts, self.alive, self.options, self.held = self.starts + 1, True, list(more), version_of(model)
        return self.ask("GET")

    def load(self, weights: Path) -> dict[str, Any]:
        if not self.alive:
            raise httpx.ConnectError("nobody listens")
        self.held = version_of(weights)
        return self.ask("GET")

    def ask(self, method: str, body: dict[str, Any] | None = None, *, seconds: float = 1.0) -> dict[str, Any]:
        if body is not None:
            self.slept.append(body["sleep"])
            self.held = "nothing"
        return {"engine": self.engine, "weights": self.held}

    def failed(self, what: str) -> EngineError:
        return EngineError(what=what, where="rollout.engine vllm", fix="Look at its log")

    def forget(self, weights: Path) -> None:
        self.forgotten.append(weights)

    def retire(self) -> None:
        self.alive = False

    def close(self) -> None:
        self.held = "closed"

    def end(self) -> None:
        self.alive = False


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("client"))


@pytest.fixture
def server(folder: Path, tmp_path: Path) -> Iterator[Server]:
    made = Server(load_policy(folder), ChatText(load_tokenizer(folder)), tmp_path)
    listening = made.serve()
    yield made
    listening.shutdown()
    listening.server_close()
    with suppress(FileNotFoundError):
        made.socket.unlink()


def sampler_of(server: Server, folder: Path, model: Any = None, **given: Any) -> EngineSampler:
    own = server.model if model is None else model
    stops = server.text.stops
    return EngineSampler(own, folder, stops, CPU, [server], patience=IMPATIENT, **given)  # type: ignore[list-item]


def test_completions_are_those_of_our_own_sampler(server: Server, folder: Path) -> None:
    sampler = sampler_of(server, folder)
    sampler.sync(server.model, "step 1")
    assert (server.starts, server.held, server.options) == (1, "step 1", [])
    finished: list[int] = []
    found = sampler.generate(REQUESTS, PARAMS, 7, advance=finished.append)
    wanted = LocalSampler(server.model, server.text.stops, CPU).generate(REQUESTS, PARAMS, 7)
    assert [one.ids for one in found] == [one.ids for one in wanted] and finished == [1] * 5
    greedy = sampler.generate(REQUESTS[:1], PARAMS, 7, greedy=True)
    assert server.asked[-1]["sampling"]["temperature"] == 0.0 and len(greedy) == 1
    with pytest.raises(ValueError, match="samples from one policy"):
        sampler.generate(REQUESTS, PARAMS, 7, mixture=Mixture(server.model, 0.5))


def test_the_seconds_of_a_round_are_counted(server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in COUNTS if name.startswith("engine_")]:
        monkeypatch.delitem(COUNTS, name)
    server.first_s = 0.25
    sampler = sampler_of(server, folder, sleeps=True)
    sampler.sync(server.model, "step 1")
    sampler.generate(REQUESTS, PARAMS, 7)
    sampler.rest()
    names = {"write", "load", "first_token", "generate", "read", "sleep"}
    assert {name for name in COUNTS if name.startswith("engine_")} == {f"engine_{name}_s" for name in names}
    assert all(COUNTS[f"engine_{name}_s"] > 0 for name in names)
    assert 2 * 0.25 <= COUNTS["engine_first_token_s"] < 60, "of the first sample of the start, and of the round"


def test_the_context_is_given_or_the_model_s(server: Server, folder: Path) -> None:
    assert sampler_of(server, folder).context == 256
    assert sampler_of(server, folder, longest=40).context == 40


def test_a_running_server_loads_the_next_weights(server: Server, folder: Path) -> None:
    sampler = sampler_of(server, folder)
    sampler.sync(server.model, "step 1")
    first = sampler._given.folder
    sampler.sync(server.model, "step 2")
    assert (server.starts, server.held, server.forgotten) == (1, "step 2", [first])
    assert sampler._give(server) is False and sampler._load(server) is True  # type: ignore[arg-type]
    assert sampler._held(server) == "step 2"  # type: ignore[arg-type]
    server.alive = False
    assert sampler._load(server) is False and sampler._give(server) is True  # type: ignore[arg-type]
    assert server.starts == 2


def test_lost_answers_are_asked_for_again(server: Server, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sampler = sampler_of(server, folder)
    sampler.sync(server.model, "step 1")
    server.faults = [500]
    found = sampler.generate(REQUESTS, PARAMS, 7)
    assert "engine: HTTP 500: {}; try 2 of 2" in capsys.readouterr().out and server.starts == 1
    assert found == sampler.generate(REQUESTS, PARAMS, 7)
    server.faults = [500] * 10
    with pytest.raises(EngineError, match=r"5 of 5 completions were not answered in 2 tries \(HTTP 500: \{\}\)"):
        sampler.generate(REQUESTS, PARAMS, 7)


def test_weights_of_another_version_are_given_again(server: Server, folder: Path) -> None:
    sampler = sampler_of(server, folder)
    sampler.sync(server.model, "step 1")
    server.held = "step 0"
    assert len(sampler.generate(REQUESTS, PARAMS, 7)) == 5 and server.held == "step 1"


def test_what_cannot_be_used_is_an_error(server: Server, folder: Path) -> None:
    sampler = sampler_of(server, folder)
    sampler.sync(server.model, "step 1")
    server.faults = [400]
    with pytest.raises(EngineError, match=r"the server rejected a request: HTTP 400: \{\}"):
        sampler.generate(REQUESTS[:1], PARAMS, 7)
    server.shift = 1000.0
    with pytest.raises(EngineError, match="the server returned an invalid answer"):
        sampler.generate(REQUESTS[:1], PARAMS, 7)


def test_a_server_with_other_log_probs_is_refused(server: Server, folder: Path) -> None:
    server.shift = -2.0
    with pytest.raises(EngineError, match="the log-probs of the server's first sample differ by 2 nats"):
        sampler_of(server, folder).sync(server.model, "step 1")


def test_another_engine_is_refused(server: Server, folder: Path) -> None:
    server.engine = "sglang 1.0"
    with pytest.raises(EngineError, match=r"the server is .sglang 1\.0., not vLLM"):
        sampler_of(server, folder).sync(server.model, "step 1")


def test_an_adapter_is_given_to_the_frozen_model(server: Server, folder: Path) -> None:
    model = load_policy(folder)
    freeze(model, LoraOptions())
    add(model, LoraOptions(rank=2, targets=["q_proj"]), folder, 0)
    sampler = sampler_of(server, folder, model)
    sampler.sync(model, "step 1")
    assert server.options[0] == "--enable-lora" and server.held == "step 1"
    assert sampler._given.frozen is not None and version_of(sampler._given.frozen) == FROZEN
    assert len(sampler.generate(REQUESTS[:2], PARAMS, 7)) == 2 and server.asked[-1]["model"] == LORA


def test_servers_sleep_between_rounds_and_wake_up_for_samples(server: Server, folder: Path) -> None:
    sampler = sampler_of(server, folder, sleeps=True)
    sampler.sync(server.model, "step 1")
    found = sampler.generate(REQUESTS, PARAMS, 7)
    rest(sampler)
    rest(sampler)
    assert (server.slept, server.held) == ([2], "nothing"), "a server is not put to sleep twice"
    assert sampler.generate(REQUESTS, PARAMS, 7) == found and server.held == "step 1"
    rest(sampler)
    sampler.sync(server.model, "step 2")
    assert (server.slept, server.held, server.starts) == ([2, 2], "step 2", 1)
    awake = sampler_of(server, folder)
    rest(awake)
    assert server.slept == [2, 2], "without the setting none sleeps"


def test_each_server_is_asked_and_closed(server: Server, folder: Path) -> None:
    sampler = sampler_of(server, folder)
    assert sampler._each(lambda one: one.starts) == [0]
    server.alive = True
    sampler.close()
    assert (server.alive, server.held) == (False, "closed")
