"""The server side of an engine: versions of weights, and requests that are refused."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from posttrain.sampling.vllm.server import HEADER, LORA, METADATA, SAMPLES, Samples, Weights, arguments, version_of


def weights(folder: Path, *versions: str | None) -> Path:
    folder.mkdir()
    for nth, version in enumerate(versions):
        metadata = {} if version is None else {METADATA: version}
        save_file({"a": torch.zeros(1)}, folder / f"{nth}.safetensors", {"format": "pt", **metadata})
    return folder


def test_the_version_is_that_of_all_files(tmp_path: Path) -> None:
    assert version_of(weights(tmp_path / "a", "step 1", "step 1")) == "step 1"
    for name, versions in {"b": ("step 1", "step 2"), "c": (None,), "d": ()}.items():
        with pytest.raises(ValueError, match=r"has weights of versions .*, but must have one version"):
            version_of(weights(tmp_path / name, *versions))


class Engine:
    """The app behind the middleware, and its engine."""

    def __init__(self) -> None:
        self.status = 200
        self.loaded: list[str] = []
        self.asked: list[tuple[str, Any]] = []
        self.state = SimpleNamespace(engine_client=self)

    async def collective_rpc(self, name: str, kwargs: dict[str, str]) -> None:
        self.loaded.append(kwargs["weights_path"])

    async def sleep(self, level: int) -> None:
        self.loaded.append(f"sleep {level}")

    async def wake_up(self, parts: list[str] | None) -> None:
        self.loaded.append(f"wake {parts}")

    async def reset_prefix_cache(self) -> None:
        self.loaded.append("reset")

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked.append((scope["path"], json.loads((await receive())["body"] or b"null")))
        await send({"type": "http.response.start", "status": self.status, "headers": []})
        await send({"type": "http.response.body", "body": b"from the app"})


def asked(
    guard: Weights | Samples, app: Engine, method: str, path: str, body: Any = None, **headers: str
) -> tuple[int, Any, Any]:
    """The status, the body and the headers of an answer."""
    sent: list[Any] = []

    bodies = 0

    async def receive() -> dict[str, Any]:
        nonlocal bodies
        bodies += 1
        if bodies > 1:  # the client waits
            await asyncio.sleep(60)
        return {"type": "http.request", "body": b"" if body is None else json.dumps(body).encode()}

    async def send(message: Any) -> None:
        sent.append(message)

    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": method, "path": path, "headers": named, "app": app}
    asyncio.run(guard(scope, receive, send))
    content = sent[1]["body"]
    return sent[0]["status"], json.loads(content) if content.startswith(b"{") else content, dict(sent[0]["headers"])


@pytest.fixture
def guarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Weights, Engine]:
    monkeypatch.setattr(Weights, "model", weights(tmp_path / "first", "step 1"))
    monkeypatch.setattr(Weights, "engine", "vllm 0.30")
    app = Engine()
    return Weights(app), app


def state(version: str) -> dict[str, Any]:
    return {"engine": "vllm 0.30", "weights": version, "pid": os.getpid()}


def test_the_state_names_the_weights(guarded: tuple[Weights, Engine]) -> None:
    assert asked(*guarded, "GET", "/posttrain")[:2] == (200, state("step 1"))


def test_completions_are_of_the_weights_that_are_asked_for(guarded: tuple[Weights, Engine]) -> None:
    named = HEADER.replace("-", "_")
    status, content, headers = asked(*guarded, "POST", SAMPLES, **{named: "step 1"})
    assert (status, content, headers[HEADER.encode()]) == (200, b"from the app", b"step 1")
    refused = asked(*guarded, "POST", SAMPLES, **{named: "step 2"})
    assert refused[:2] == (409, {"error": "the server holds the weights 'step 1', not 'step 2'"})
    assert asked(*guarded, "GET", "/health")[1] == b"from the app"


def test_a_server_whose_engine_has_ended_holds_no_weights(guarded: tuple[Weights, Engine]) -> None:
    guard, app = guarded
    app.status = 503
    assert asked(guard, app, "POST", SAMPLES, **{HEADER.replace("-", "_"): "step 1"})[0] == 503
    assert asked(guard, app, "GET", "/posttrain")[1]["weights"] is None


def test_requests_that_are_too_long_are_refused_and_others_pass() -> None:
    app = Engine()
    app.state.engine_client.model_config = SimpleNamespace(max_model_len=8)  # type: ignore[attr-defined]
    body = {"prompt": [1, 2, 3], "sampling": {"max_tokens": 6}}
    found = asked(Samples(app), app, "POST", SAMPLES, body)
    assert found[:2] == (400, {"error": "a prompt and its longest completion have 9 tokens, more than 8"})
    assert asked(Samples(app), app, "POST", "/v1/load_lora_adapter")[1] == b"from the app"


def test_weights_are_replaced(guarded: tuple[Weights, Engine], tmp_path: Path) -> None:
    guard, app = guarded
    folder = weights(tmp_path / "next", "step 2")
    assert asked(guard, app, "POST", "/posttrain", {"folder": str(folder)})[:2] == (200, state("step 2"))
    assert app.loaded == [str(folder), "reset"]
    broken = asked(guard, app, "POST", "/posttrain", {"folder": str(weights(tmp_path / "none"))})
    assert broken[0] == 500 and asked(guard, app, "GET", "/posttrain")[1]["weights"] is None


def test_a_server_that_sleeps_wakes_up_for_weights(guarded: tuple[Weights, Engine], tmp_path: Path) -> None:
    guard, app = guarded
    named = HEADER.replace("-", "_")
    for level in (2, 1):
        assert asked(guard, app, "POST", "/posttrain", {"sleep": level})[1]["weights"] is None
        assert asked(guard, app, "POST", SAMPLES, **{named: "step 1"})[0] == 409
        folder = weights(tmp_path / f"level {level}", "step 1")
        if level == 1:
            (folder / "adapter_config.json").write_text("{}")
        assert asked(guard, app, "POST", "/posttrain", {"folder": str(folder)})[:2] == (200, state("step 1"))
        assert asked(guard, app, "POST", SAMPLES, **{named: "step 1"})[0] == 200
    whole = ["sleep 2", "wake ['weights']", str(tmp_path / "level 2"), "wake ['kv_cache']", "reset"]
    assert app.loaded == [*whole, "sleep 1", "wake None", "reset"]


def test_adapters_are_replaced_by_the_app_s_own_routes(guarded: tuple[Weights, Engine], tmp_path: Path) -> None:
    guard, app = guarded
    for number in (2, 3):
        folder = weights(tmp_path / str(number), f"step {number}")
        (folder / "adapter_config.json").write_text("{}")
        assert asked(guard, app, "POST", "/posttrain", {"folder": str(folder)})[0] == 200
    assert [path for path, _ in app.asked] == [
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
        "/v1/load_lora_adapter",
    ]
    assert app.asked[-1][1] == {"lora_name": LORA, "lora_path": str(folder)}


def test_options_of_the_engine_are_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["server", "--parent", "7", "--model", "m", "--socket", "/s/x", "--max-model-len", "64"]
    monkeypatch.setattr(sys, "argv", words)
    options, rest = arguments()
    assert (options.parent, options.model, options.socket) == (7, Path("m"), Path("/s/x"))
    assert rest == ["--max-model-len", "64"]
