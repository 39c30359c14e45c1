"""The server side of an external engine: a guard, and middleware that checks and replaces the weights.

It runs in vLLM's own environment, so it imports nothing from posttrain, and only the standard library before vLLM
starts.

    python engine_server.py --parent PID --model FOLDER --socket FILE [options of vLLM]

GET /posttrain      the engine, its package's version and the version of the weights that it holds
POST /posttrain     {"folder": ...}: load the weights, or the adapter, of this folder; the answer is as above
                    {"sleep": 1 or 2}: give the GPU's memory back, with 2 also the weights, until a folder is loaded
POST /posttrain/samples  a completion as tokens and log-probs; refused (409) unless the header `posttrain-weights` names
                         the weights that it holds
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import json
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from itertools import count
from pathlib import Path
from typing import Any

HEADER = "posttrain-weights"
"""The header of completion requests and answers with the version of the weights."""
SAMPLES = "/posttrain/samples"
"""The path of requests for a completion."""
METADATA = "posttrain_weights"
"""The metadata key in each safetensors file with the version."""
VERSIONS = "0.30+"
"""The versions of vLLM that have every feature used here."""
POLICY, LORA = "policy", "adapter"
"""The model names in requests: the model, or the model with the adapter."""
KEEPS_WEIGHTS, DROPS_WEIGHTS = 1, 2
"""vLLM's levels of sleep: the weights move to host memory, or are dropped."""
WATCH_S = 0.5
"""Seconds between two checks of the parent."""
ARRIVAL_S = 60.0
"""Seconds that data sent before a request may arrive later than the request."""
GRACE_S = 2.0
"""Seconds that the server has to end by itself after its parent has ended."""


def end_with(parent: int, folder: Path) -> None:
    """End this process group when the parent has ended for any reason, and remove the folder of socket and weights."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(WATCH_S)
        shutil.rmtree(folder, ignore_errors=True)
        os.kill(os.getpid(), signal.SIGTERM)  # vLLM then removes its own shared memory
        time.sleep(GRACE_S)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, name="guard", daemon=True).start()


def version_of(folder: Path) -> str:
    """Return the version in the metadata of all weight files in a folder."""
    versions = set()
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as stream:
            header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
        versions.add(header.get("__metadata__", {}).get(METADATA))
    if len(versions) != 1 or None in versions:
        raise ValueError(f"{folder} has weights of versions {sorted(map(str, versions))}, but must have one version")
    return str(versions.pop())


class Weights:
    """ASGI middleware: serve completions only with the requested weights, and add a route that replaces the weights.

    The app's `state.engine_client` loads whole models, and the app's own routes load adapters, as in vLLM. While
    weights are replaced, and after that has failed, there are no valid weights, and no completion is served.
    """

    model = Path()
    """The folder that the server was started with."""
    engine = ""
    """`vllm` and its version."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._held: str | None = version_of(self.model)
        self._active = self._asleep = 0
        self._adapter = False
        self._lock = asyncio.Lock()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"] == "/posttrain":
            status, body = await self._control(scope, receive)
            await _answer(send, status, body)
        elif scope["type"] == "http" and scope["path"] == SAMPLES:
            await self._completion(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _control(self, scope: Any, receive: Any) -> tuple[int, dict[str, Any]]:
        if scope["method"] != "POST":
            return 200, self._state()
        async with self._lock:
            if self._active:
                return 409, {"error": f"{self._active} requests are in progress"}
            held, self._held = self._held, None
            try:
                asked, client = json.loads(await _body(receive)), scope["app"].state.engine_client
                if "folder" in asked:
                    held = await self._load(scope, client, Path(asked["folder"]))
                else:
                    await client.sleep(asked["sleep"])
                    self._asleep, held = asked["sleep"], None
            except Exception as error:  # noqa: BLE001  whatever vLLM raises: the client gets it, and stops or starts anew
                traceback.print_exc()
                return 500, {"error": f"the weights were not loaded ({error!r:.500})"}
            self._held = held
        return 200, self._state()

    async def _load(self, scope: Any, client: Any, folder: Path) -> str:
        """Load the weights or the adapter in a folder, and return their version. A server that sleeps wakes up."""
        await _arrived(folder)
        version = version_of(folder)
        if (folder / "adapter_config.json").is_file():
            await self._wake(client)
            await self._load_adapter(scope, folder)
        else:
            await self._wake(client, ["weights"])
            await client.collective_rpc("reload_weights", kwargs={"weights_path": str(folder)})
            await self._wake(client, ["kv_cache"])
        self._asleep = 0
        await client.reset_prefix_cache()
        return version

    async def _wake(self, client: Any, parts: list[str] | None = None) -> None:
        """Take the memory of some parts again, by default of all, if the server sleeps."""
        if self._asleep:
            await client.wake_up(parts)

    async def _load_adapter(self, scope: Any, folder: Path) -> None:
        """Replace the adapter through vLLM's own routes.

        If replaced in place, it would be read again in each decoding step.
        """
        if self._adapter:
            await self._asked(scope, "/v1/unload_lora_adapter", {"lora_name": LORA})
            self._adapter = False
        await self._asked(scope, "/v1/load_lora_adapter", {"lora_name": LORA, "lora_path": str(folder)})
        self._adapter = True

    async def _asked(self, scope: Any, path: str, body: dict[str, Any]) -> None:
        """Call another route of the app. Raise if it does not answer 200."""
        sent: list[dict[str, Any]] = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]
        answers: list[Any] = []

        async def receive() -> dict[str, Any]:
            return sent.pop() if sent else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            answers.append(message)

        headers = [(b"content-type", b"application/json")]
        named = {"path": path, "raw_path": path.encode(), "headers": headers}
        await self._app({**scope, **named}, receive, send)
        if answers[0]["status"] != 200:
            raise RuntimeError(b"".join(answer.get("body", b"") for answer in answers).decode(errors="replace"))

    async def _completion(self, scope: Any, receive: Any, send: Any) -> None:
        asked = dict(scope["headers"]).get(HEADER.encode(), b"").decode()
        held = self._held
        if held is None or asked != held:
            await _answer(send, 409, {"error": f"the server holds the weights {held!r}, not {asked!r}"})
            return

        async def marked(message: Any) -> None:
            if message["type"] == "http.response.start":
                if (
                    message["status"] == 503
                ):  # vLLM's engine has ended: no weights, so the client starts the server anew
                    self._held = None
                message = {**message, "headers": [*message["headers"], (HEADER.encode(), held.encode())]}
            await send(message)

        self._active += 1
        try:
            await self._app(scope, receive, marked)
        finally:
            self._active -= 1

    def _state(self) -> dict[str, Any]:
        return {"engine": self.engine, "weights": self._held, "pid": os.getpid()}


class Samples:
    """ASGI middleware: complete prompts by vLLM's engine itself, as tokens and log-probs.

    vLLM's own routes make text and objects of every token, which takes most of the time of their process.
    """

    def __init__(self, app: Any) -> None:
        self._app, self._numbers = app, count()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] != SAMPLES:
            await self._app(scope, receive, send)
            return
        state, body = scope["app"].state, json.loads(await _body(receive))
        work, gone = asyncio.ensure_future(self._answer(state, body)), asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            if not work.done():
                work.cancel()  # vLLM then drops the request
        if work.done():
            await _answer(send, *work.result())

    async def _answer(self, state: Any, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        client, longest = state.engine_client, state.engine_client.model_config.max_model_len
        if (size := len(body["prompt"]) + body["sampling"]["max_tokens"]) > longest:
            return 400, {"error": f"a prompt and its longest completion have {size} tokens, more than {longest}"}
        try:
            return 200, await self._completed(client, state, body)
        except ValueError as error:
            return 400, {"error": f"{error!r:.500}"}
        except Exception as error:  # noqa: BLE001  whatever vLLM raises: the client asks again
            traceback.print_exc()
            return (503 if client.errored else 500), {"error": f"{error!r:.500}"}

    async def _completed(self, client: Any, state: Any, body: dict[str, Any]) -> dict[str, Any]:
        """Return the completion. Its log-probs are in the answer if they were asked for."""
        from vllm import SamplingParams
        from vllm.inputs import tokens_input
        from vllm.sampling_params import RequestOutputKind

        begun, first = time.monotonic(), None
        given = body["sampling"]
        params = SamplingParams(  # two parts: the first token, and the rest
            **given, flat_logprobs=True, output_kind=RequestOutputKind.DELTA, stream_interval=given["max_tokens"]
        )
        adapter = state.openai_serving_models.lora_requests[LORA] if body["model"] == LORA else None
        name = f"{body['name']}:{next(self._numbers)}"
        ids: list[int] = []
        logps: list[float] = []
        extra: dict[str, Any] = {}
        async for part in client.generate(tokens_input(body["prompt"]), params, name, lora_request=adapter):
            first = first or time.monotonic() - begun
            [output] = part.outputs
            ids += output.token_ids
            if (flat := output.logprobs) is not None:
                logps += [flat.logprobs[start] for start in flat.start_indices]
            if output.routed_experts is not None:
                extra["routed_experts"] = encoded(output.routed_experts)
            extra["prompt_tokens"] = len(part.prompt_token_ids)
        return {**extra, "token_ids": ids, "logprobs": logps, "first_s": first}


def encoded(array: Any) -> str:
    """Return an array as base64 of a .npy file."""
    import numpy as np

    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return base64.b64encode(buffer.getvalue()).decode()


async def _gone(receive: Any) -> None:
    """Wait until the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _arrived(folder: Path) -> None:
    """Wait for a folder that another host sends. It appears when it is complete."""
    latest = time.monotonic() + ARRIVAL_S
    while not folder.is_dir() and time.monotonic() < latest:
        await asyncio.sleep(0.02)


async def _body(receive: Any) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


async def _answer(send: Any, status: int, body: dict[str, Any]) -> None:
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(body).encode()})


def arguments() -> tuple[argparse.Namespace, list[str]]:
    """Return the arguments of posttrain's server, and the engine's own options."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--parent", type=int, required=True, help="process ID; the server ends when this process ends")
    parser.add_argument("--model", type=Path, required=True, help="the folder of the first weights")
    parser.add_argument(
        "--socket", type=Path, required=True, help="the Unix socket; the server deletes its folder at the end"
    )
    return parser.parse_known_args()


def main() -> None:
    """Run vLLM's server."""
    options, rest = arguments()
    end_with(options.parent, options.socket.parent)
    sys.path.pop(0)  # the folder of this file, whose modules are not for this environment
    sys.modules["posttrain_engine_server"] = sys.modules["__main__"]
    import uvloop
    import vllm
    from vllm.entrypoints.launchers.api_server.entry import run_server
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.entrypoints.serve.utils.api_utils import cli_env_setup
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    Weights.model, Weights.engine = options.model, f"vllm {vllm.__version__.partition('+')[0]}"
    os.environ["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    cli_env_setup()
    args = make_arg_parser(FlexibleArgumentParser(allow_abbrev=False)).parse_args(
        [
            "--model", str(options.model), "--uds", str(options.socket), "--served-model-name", POLICY,
            "--logprobs-mode", "processed_logprobs", "--generation-config", "vllm", "--seed", "0",
            "--middleware", "posttrain_engine_server.Samples", "--middleware", "posttrain_engine_server.Weights",
            "--disable-uvicorn-access-log", *rest,
        ]
    )  # fmt: skip
    validate_parsed_serve_args(args)
    uvloop.run(run_server(args))


if __name__ == "__main__":
    main()
