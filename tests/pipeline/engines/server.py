"""A server with vLLM's API for completions over our own decoder, with faults on demand.

    POSTTRAIN_VLLM="python tests/pipeline/engines/server.py" ENGINE_FAULTS=500@3,die@20 ENGINE_FAULTS_DONE=FOLDER ...

It takes what posttrain gives to vLLM's server. A fault is `KIND@N`: at the N-th completion (or, for `stale`, the N-th
load of weights) of a process; it happens once, which a file in the folder remembers over restarts. ENGINE_ALONE: each
completion is decoded by itself, so that its log-probs have the same bits whatever comes with it. ENGINE_PERTURB: how
much the head is changed. ENGINE_EXPERTS: the share of the tokens whose experts it gives where it is asked for
these. ENGINE_ASKED: a folder for a file of each process with the names that it was asked for.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path[0] = str(ROOT)

import numpy as np  # noqa: E402
import torch  # noqa: E402
import uvicorn  # noqa: E402
from starlette.applications import Starlette  # noqa: E402
from starlette.requests import Request as HttpRequest  # noqa: E402
from starlette.responses import JSONResponse, PlainTextResponse, Response  # noqa: E402
from starlette.routing import Route  # noqa: E402

from posttrain.formulas.ragged import row_keys  # noqa: E402
from posttrain.models.device import DeviceParams, Runtime  # noqa: E402
from posttrain.models.files.adapter_files import merge_into, read_adapter  # noqa: E402
from posttrain.models.files.store import load_model, load_tokenizer  # noqa: E402
from posttrain.models.forward.forward import packed_states  # noqa: E402
from posttrain.models.forward.routers import Recording, find_routers  # noqa: E402
from posttrain.rollout import TokenRow  # noqa: E402
from posttrain.sampling.builtin import LocalSampler  # noqa: E402
from posttrain.sampling.sampler import Completion, Request, SamplingParams  # noqa: E402
from posttrain.sampling.vllm.server import HEADER, SAMPLES, Weights, arguments, encoded, end_with  # noqa: E402
from posttrain.text.packing import pack  # noqa: E402
from posttrain.text.stops import Stops  # noqa: E402

ENGINE = "vllm 0.30.0"
GATHER_S = 0.005
"""Seconds in which requests come together to one batch."""


@dataclass
class Faults:
    """The faults that are due."""

    due: dict[int, str]
    done: Path
    counted: int = 0

    @classmethod
    def of(cls, kinds: set[str]) -> Faults:
        """Those of these kinds in the environment."""
        given = (one.split("@") for one in os.environ.get("ENGINE_FAULTS", "").split(",") if one)
        return cls(
            {int(at): kind for kind, at in given if kind in kinds}, Path(os.environ.get("ENGINE_FAULTS_DONE", "."))
        )

    def next(self) -> str:
        """The fault of this request; none most of the time."""
        self.counted += 1
        kind = self.due.get(self.counted, "")
        mark = self.done / f"fault-{kind}-{self.counted}"
        if not kind or mark.exists():
            return ""
        mark.touch()
        return kind


@dataclass
class Engine:
    """The decoder behind the server, with what vLLM's engine client has."""

    folder: Path
    longest: int | None
    socket: str
    routed: bool = False
    waiting: list[tuple[dict[str, Any], asyncio.Future[Completion]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.decoding = asyncio.Lock()
        self.adapters: set[str] = set()
        self.runtime = Runtime(DeviceParams(device="cpu"))
        self.tokenizer = load_tokenizer(self.folder)
        self.load(self.folder)

    def load(self, folder: Path) -> None:
        """Take the weights of a folder, changed where ENGINE_PERTURB says by how much."""
        self.model = load_model(folder)
        if by := float(os.environ.get("ENGINE_PERTURB", "0")):
            with torch.no_grad():
                self.model.lm_head.weight.mul_(1 + by)

    def load_adapter(self, name: str, folder: Path) -> None:
        """Take the model of the start with an adapter merged into it, as nothing of vLLM does."""
        if os.environ.get("ENGINE_WITHOUT_ADAPTERS"):
            raise ValueError("vLLM cannot take this adapter")
        if name in self.adapters:
            raise ValueError(f"{name} is there")
        self.adapters.add(name)
        self.load(self.folder)
        merge_into(self.model, *read_adapter(folder), str(folder))

    async def collective_rpc(self, method: str, kwargs: dict[str, str]) -> None:
        """Load weights."""
        assert method == "reload_weights"
        self.load(Path(kwargs["weights_path"]))

    async def reset_prefix_cache(self) -> None:
        """There is none."""

    async def complete(self, body: dict[str, Any]) -> Completion:
        """The completion of a request, decoded with those that came with it."""
        result: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self.waiting.append((body, result))
        await asyncio.sleep(GATHER_S)
        async with self.decoding:
            batch, self.waiting = self.waiting, []
            completions = await asyncio.to_thread(self._decode, [one for one, _ in batch]) if batch else []
        for (_, waiter), completion in zip(batch, completions, strict=True):
            if not waiter.done():  # its request was cancelled
                waiter.set_result(completion)
        return await result

    def _decode(self, bodies: list[dict[str, Any]]) -> list[Completion]:
        first = bodies[0]["sampling"]
        temperature = first["temperature"] or 1.0
        sampling = SamplingParams(max_tokens=first["max_tokens"], temperature=temperature, stop=first["stop"])
        if os.environ.get("ENGINE_ALONE"):
            sampling = sampling.model_copy(update={"rows": 1})
        stops = Stops(tuple(first["stop_token_ids"]), self.tokenizer.decode)
        requests = []
        for body in bodies:
            seed, _, name = body["name"].partition(":")
            key = int(row_keys(int(seed), [name])[0]) & (2**63 - 1)
            assert key == body["sampling"]["seed"], "the seed is not that of the name"
            requests.append(Request(body["prompt"], name))
        sampler = LocalSampler(self.model, stops, self.runtime)
        batches = [[one] for one in requests] if os.environ.get("ENGINE_ALONE") else [requests]
        greedy = not first["temperature"]
        done = [one for batch in batches for one in sampler.generate(batch, sampling, int(seed), greedy=greedy)]
        if not self.routed:
            return done
        pairs = zip(requests, done, strict=True)
        return [replace(one, experts=self._experts(asked.ids, one.ids)) for asked, one in pairs]

    @torch.no_grad()
    def _experts(self, prompt: Sequence[int], ids: Sequence[int]) -> torch.Tensor:
        """Those of every token but the last, in every layer; 0 in layers without a router."""
        packed = pack([TokenRow(prompt, ids)])
        with Recording(self.model, find_routers(self.model), packed) as recording:
            packed_states(self.model, packed)
        chosen = recording.experts()[:-1]
        config = self.model.config
        every = chosen.new_zeros(len(chosen), config.num_hidden_layers, chosen.shape[2])
        every[:, [layer for layer in range(config.num_hidden_layers) if layer not in config.mlp_only_layers]] = chosen
        return every


def encoded_experts(one: Completion) -> dict[str, str]:
    """What vLLM's answer has of the experts."""
    share = float(os.environ.get("ENGINE_EXPERTS", "1"))
    if one.experts is None or not share:
        return {}
    return {"routed_experts": encoded(one.experts[: int(share * len(one.experts))].numpy().astype(np.uint8))}


def application(engine: Engine) -> Starlette:
    """The routes behind the guard: that for samples, and those of vLLM for adapters."""
    faults = Faults.of({"500", "400", "409", "hangup", "die", "hang", "nonsense", "text", "short", "version"})

    async def completions(request: HttpRequest) -> Response:
        body = await request.json()
        sampling = body["sampling"]
        expected = {"logprobs": 0, "ignore_eos": True, "detokenize": bool(sampling["stop"])}
        expected |= {"skip_special_tokens": False, "spaces_between_special_tokens": False}  # as stops are found here
        assert sampling.items() >= expected.items(), body
        assert body["model"] in engine.adapters or (body["model"] == "policy" and not engine.adapters), body
        if asked := os.environ.get("ENGINE_ASKED"):
            with Path(asked, f"asked-{engine.socket}").open("a", encoding="utf-8") as file:
                file.write(f"{body['name']}\n")
        match fault := faults.next():
            case "500" | "400" | "409":
                return JSONResponse({"error": {"message": "as was asked"}}, status_code=int(fault))
            case "die":
                os._exit(7)
            case "hang":
                await asyncio.sleep(3600)
            case "text":
                return PlainTextResponse("<html>")
        if engine.longest is not None and len(body["prompt"]) + sampling["max_tokens"] > engine.longest:
            return JSONResponse({"error": {"message": f"longer than {engine.longest}"}}, status_code=400)
        one = await engine.complete(body)
        ids = [10**6, *one.ids[1:]] if fault == "nonsense" else one.ids[:-1] if fault == "short" else one.ids
        answer = {
            "token_ids": ids,
            "prompt_tokens": len(body["prompt"]),
            "first_s": 0.0,
            "logprobs": one.logps[: len(ids)],
        }
        headers = {"fault": fault} if fault else {}
        return JSONResponse(answer | encoded_experts(one), headers=headers)

    async def load_adapter(request: HttpRequest) -> Response:
        body = await request.json()
        try:
            engine.load_adapter(body["lora_name"], Path(body["lora_path"]))
        except ValueError as error:
            return JSONResponse({"error": str(error)}, status_code=500)
        return PlainTextResponse("Success")

    async def unload_adapter(request: HttpRequest) -> Response:
        engine.adapters.remove((await request.json())["lora_name"])
        return PlainTextResponse("Success")

    routes = {
        SAMPLES: completions,
        "/v1/load_lora_adapter": load_adapter,
        "/v1/unload_lora_adapter": unload_adapter,
    }
    return Starlette(routes=[Route(path, answer, methods=["POST"]) for path, answer in routes.items()])


class Outer:
    """Faults of the connection, the version and the loading of weights."""

    def __init__(self, app: Any) -> None:
        self._app, self._loads = app, Faults.of({"stale"})

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        loads = scope["type"] == "http" and scope["path"] == "/posttrain" and scope["method"] == "POST"
        if loads and self._loads.next() == "stale":
            scope = {**scope, "method": "GET"}

        async def sent(message: Any) -> None:
            headers = dict(message.get("headers", ()))
            fault = headers.get(b"fault", b"")
            if fault == b"version":
                message = {**message, "headers": [*{**headers, HEADER.encode(): b"another"}.items()]}
            elif fault == b"hangup":
                await send(message)
                await send({"type": "http.response.body", "body": b'{"object', "more_body": True})
                raise ConnectionAbortedError("as was asked")
            await send(message)

        await self._app(scope, receive, sent)


def main() -> None:
    """Serve until the parent ends."""
    options, rest = arguments()
    end_with(options.parent, options.socket.parent)
    Weights.model, Weights.engine = options.model, os.environ.get("ENGINE_NAME", ENGINE)
    longest = int(rest[rest.index("--max-model-len") + 1]) if "--max-model-len" in rest else None
    engine = Engine(options.model, longest, options.socket.name, "--enable-return-routed-experts" in rest)
    app = application(engine)
    app.state.engine_client = engine
    app.add_middleware(Weights)
    app.add_middleware(Outer)
    uvicorn.run(app, uds=str(options.socket), log_level="warning")


if __name__ == "__main__":
    main()
